"""The tables that questions about facts are answered from."""


def _pairs(text: str) -> dict[str, str]:
    """`key: value` entries, one a line or separated by semicolons."""
    entries = (entry.split(":") for line in text.strip().splitlines() for entry in line.split(";") if entry.strip())
    return {key.strip(): value.strip() for key, value in entries}


CAPITALS = _pairs("""
France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; Ireland: Dublin; Poland: Warsaw
Austria: Vienna; Switzerland: Bern; Belgium: Brussels; Denmark: Copenhagen; Sweden: Stockholm; Norway: Oslo
Finland: Helsinki; Greece: Athens; Hungary: Budapest; Japan: Tokyo; China: Beijing; India: New Delhi; Egypt: Cairo
Kenya: Nairobi; Canada: Ottawa; Mexico: Mexico City; Brazil: Brasilia; Argentina: Buenos Aires; Chile: Santiago
Peru: Lima; Australia: Canberra; Turkey: Ankara; Russia: Moscow; Ukraine: Kyiv; Thailand: Bangkok; Vietnam: Hanoi
South Korea: Seoul; Cuba: Havana; Iceland: Reykjavik; the United States: Washington; the Netherlands: Amsterdam
the United Kingdom: London; England: London; Scotland: Edinburgh; Wales: Cardiff; Nigeria: Abuja; Pakistan: Islamabad
Iran: Tehran; Iraq: Baghdad; Ethiopia: Addis Ababa; Ghana: Accra; Nepal: Kathmandu; Mongolia: Ulaanbaatar
Romania: Bucharest; Bulgaria: Sofia; Croatia: Zagreb; Morocco: Rabat; Algeria: Algiers; Angola: Luanda
Cambodia: Phnom Penh; Malaysia: Kuala Lumpur; Indonesia: Jakarta; Jordan: Amman; Qatar: Doha; Latvia: Riga
Estonia: Tallinn; Lithuania: Vilnius; Serbia: Belgrade; Colombia: Bogota; Venezuela: Caracas; Uganda: Kampala
Zambia: Lusaka; Slovakia: Bratislava; Slovenia: Ljubljana; Albania: Tirana; Cyprus: Nicosia; Malta: Valletta
Luxembourg: Luxembourg City; Belarus: Minsk; Georgia: Tbilisi; Armenia: Yerevan; Lebanon: Beirut; Syria: Damascus
Oman: Muscat; Yemen: Sanaa; Afghanistan: Kabul; Bangladesh: Dhaka; Laos: Vientiane; the Philippines: Manila
New Zealand: Wellington; Ecuador: Quito; Uruguay: Montevideo; Paraguay: Asuncion; Jamaica: Kingston
Haiti: Port-au-Prince
Senegal: Dakar; Tunisia: Tunis; Libya: Tripoli; Sudan: Khartoum; Somalia: Mogadishu; Rwanda: Kigali
Zimbabwe: Harare; Namibia: Windhoek; Botswana: Gaborone; Mali: Bamako; the Czech Republic: Prague; Saudi Arabia: Riyadh
""")

OPPOSITES = _pairs("""
big: small; hot: cold; fast: slow; young: old; light: dark; happy: sad; high: low; good: bad; open: closed; full: empty
hard: soft; left: right; up: down; day: night; rich: poor; long: short; loud: quiet; wet: dry; early: late
black: white; strong: weak; thick: thin; wide: narrow; deep: shallow; clean: dirty; safe: dangerous; easy: difficult
cheap: expensive; heavy: weightless; true: false; first: last; inside: outside; above: below; before: after; near: far
love: hate; war: peace; win: lose; push: pull; give: take; buy: sell; start: stop; begin: end; come: go
laugh: cry; remember: forget; arrive: depart; accept: refuse; alive: dead; ancient: modern; brave: afraid
sharp: blunt; smooth: rough; sweet: sour; straight: crooked; polite: rude; noisy: silent; north: south; east: west
summer: winter; morning: evening; success: failure; entrance: exit; question: answer; friend: enemy; always: never
""")

COLOURS = _pairs("""
the sky: blue; grass: green; snow: white; the sun: yellow; blood: red; a banana: yellow; a tomato: red
an orange: orange
coal: black; a lemon: yellow; the sea: blue; milk: white; a leaf: green; a strawberry: red; chocolate: brown
a carrot: orange; a flamingo: pink; a polar bear: white; a raven: black; a plum: purple; an emerald: green; a ruby: red
a sapphire: blue; ash: grey; an elephant: grey; a cucumber: green; a cherry: red; a swan: white; a pumpkin: orange
coffee: brown; lavender: purple; a lime: green; salt: white; tar: black; rust: brown; a pea: green; cotton: white
a fire engine: red; a frog: green; a pig: pink; a canary: yellow; mustard: yellow; spinach: green; bread: brown
a sunflower: yellow; an eggplant: purple; a blueberry: blue; a raspberry: red; a dolphin: grey; a panther: black
""")

UNITS = _pairs("""
seconds in a minute: 60; minutes in an hour: 60; hours in a day: 24; days in a week: 7; months in a year: 12
days in a year: 365; weeks in a year: 52; years in a decade: 10; years in a century: 100; years in a millennium: 1000
centimetres in a metre: 100; millimetres in a centimetre: 10; metres in a kilometre: 1000; grams in a kilogram: 1000
kilograms in a tonne: 1000; millilitres in a litre: 1000; inches in a foot: 12; feet in a yard: 3; ounces in a pound: 16
pints in a gallon: 8; bits in a byte: 8; eggs in a dozen: 12; degrees in a circle: 360; degrees in a right angle: 90
sides in a triangle: 3; sides in a square: 4; sides in a hexagon: 6; sides in a pentagon: 5; sides in an octagon: 8
letters in the alphabet: 26; cents in a dollar: 100; pence in a pound sterling: 100; milligrams in a gram: 1000
quarters in a year: 4; days in a leap year: 366; years in a generation: 25; players in a football team: 11
strings on a violin: 4; strings on a guitar: 6; keys on a piano: 88; cards in a deck: 52; planets in the solar system: 8
""")
