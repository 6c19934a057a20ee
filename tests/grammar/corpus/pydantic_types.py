"""Types as applications write them with pydantic. `python -m tests.grammar.corpus.pydantic_types` prints a JSON Schema
a line, by its name."""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import (
    UUID4,
    AnyUrl,
    AwareDatetime,
    Base64Str,
    BaseModel,
    ConfigDict,
    Field,
    FutureDate,
    HttpUrl,
    Json,
    NegativeFloat,
    NonNegativeInt,
    PastDate,
    PositiveFloat,
    PositiveInt,
    Secret,
    SecretStr,
    Strict,
    StringConstraints,
    TypeAdapter,
    conint,
    conlist,
    constr,
)
from typing_extensions import TypedDict


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Level(enum.IntEnum):
    low = 1
    high = 2


class Mixed(enum.Enum):
    one = 1
    label = "name"
    nothing = None


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class Address(BaseModel):
    """Where someone lives."""

    street: str = Field(description="With the number", examples=["High Street 1"])
    city: str
    postcode: str | None = None


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=80)
    age: int = Field(ge=0, le=150)
    addresses: list[Address] = Field(default_factory=list, max_length=5)
    favourite: Colour | None = None


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Linked(BaseModel):
    value: str
    next: "Linked | None" = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: str


class Fish(BaseModel):
    kind: Literal["fish", "shark"] = "fish"
    depth: float


Pet = Annotated[Cat | Dog | Fish, Field(discriminator="kind")]


class Owner(BaseModel):
    pet: Pet
    others: list[Pet]


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


class Strictly(BaseModel):
    model_config = ConfigDict(extra="forbid", title="Strict")
    number: Annotated[int, Strict()]
    flag: bool


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    a: int


class Ui(BaseModel):
    type: Literal["div", "button", "field"]
    label: str
    children: list["Ui"]
    attributes: list["Attribute"]


class Attribute(BaseModel):
    name: str
    value: str


class Event(BaseModel):
    name: str
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    length: datetime.timedelta
    id: uuid.UUID


class Machine(BaseModel):
    address: ipaddress.IPv4Address
    network: ipaddress.IPv4Network
    six: ipaddress.IPv6Address
    either: ipaddress.IPv4Address | ipaddress.IPv6Address
    home: pathlib.Path
    page: HttpUrl
    link: AnyUrl


class Secrets(BaseModel):
    password: SecretStr
    token: Secret[str]
    blob: bytes
    encoded: Base64Str
    pattern: re.Pattern[str]


class Counts(BaseModel):
    by_colour: dict[Colour, int]
    by_level: dict[Literal["low", "high"], float]
    by_id: dict[UUID4, str]
    by_day: dict[datetime.date, int]
    by_code: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")], int]
    by_name: dict[Annotated[str, StringConstraints(min_length=1, max_length=8)], list[int]]
    free: dict[str, Any]


class Numbers(BaseModel):
    positive: PositiveInt
    share: Annotated[float, Field(gt=0, lt=1)]
    percent: Annotated[float, Field(ge=0, le=100, multiple_of=0.5)]
    even: Annotated[int, Field(multiple_of=2)]
    below: NegativeFloat
    count: NonNegativeInt
    price: decimal.Decimal = Field(max_digits=8, decimal_places=2)
    complex: PositiveFloat | None = None


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    first_name: str = Field(alias="firstName")
    is_new: bool = Field(alias="is-new", default=False)


class Point(NamedTuple):
    x: float
    y: float


class Movie(TypedDict, total=False):
    name: str
    year: int


@dataclass
class Box:
    width: int
    label: str = "box"


class Search(BaseModel):
    """A query of a database."""

    table_name: Literal["orders", "customers"]
    columns: list[Literal["id", "status", "date"]]
    conditions: list["Condition"]
    order_by: Literal["asc", "desc"]


class Condition(BaseModel):
    column: str
    operator: Literal["=", ">", "<", "!="]
    value: str | int | float | list[str]


TYPES: dict[str, Any] = {
    "colour": Colour,
    "level": Level,
    "mixed": Mixed,
    "reasoning": Reasoning,
    "address": Address,
    "person": Person,
    "tree": Tree,
    "linked": Linked,
    "pet": Pet,
    "owner": Owner,
    "page of people": Page[Person],
    "page of int": Page[int],
    "strict": Strictly,
    "open": Open,
    "ui": Ui,
    "event": Event,
    "machine": Machine,
    "secrets": Secrets,
    "counts": Counts,
    "numbers": Numbers,
    "aliased": Aliased,
    "point": Point,
    "movie": Movie,
    "box": Box,
    "search": Search,
    "string": str,
    "int": int,
    "float": float,
    "bool": bool,
    "none": None,
    "any": Any,
    "list": list,
    "dict": dict,
    "list of int": list[int],
    "list of any": list[Any],
    "optional": int | None,
    "union": int | str,
    "union of models": Cat | Address | None,
    "tuple": tuple[int, str],
    "tuple of any length": tuple[int, ...],
    "nested tuple": tuple[tuple[float, float], str],
    "set of colours": set[Colour],
    "set of flags": set[bool],
    "set of strings": set[str],
    "frozenset of literals": frozenset[Literal["a", "b", "c"]],
    "literal": Literal["a", 1, None, True],
    "dict of lists": dict[str, list[int]],
    "dict of dicts": dict[str, dict[str, int]],
    "constr": constr(pattern=r"^\d{3}-\d{4}$"),
    "email like": constr(pattern=r"^[\w.+-]+@[\w-]+\.[\w.-]+$"),
    "trimmed": constr(strip_whitespace=True, to_lower=True, min_length=2),
    "conint": conint(gt=1, lt=1024, multiple_of=8),
    "conlist": conlist(int, min_length=1, max_length=4),
    "list of models": list[Person],
    "dict of models": dict[str, Pet],
    "int keys": dict[int, str],
    "uuid": UUID4,
    "past": PastDate,
    "future": FutureDate,
    "aware": AwareDatetime,
    "json": Json[list[int]],
    "bytes": bytes,
    "decimal": decimal.Decimal,
    "path": pathlib.Path,
    "pattern": re.Pattern[str],
    "list of unions": list[int | str | None],
    "deep": dict[str, list[dict[Literal["k"], tuple[int, Colour]]]],
}


def main() -> None:
    """Print the schemas."""
    for name, each in TYPES.items():
        print(json.dumps({"from": "pydantic", "name": name, "schema": TypeAdapter(each).json_schema()}))


if __name__ == "__main__":
    main()
