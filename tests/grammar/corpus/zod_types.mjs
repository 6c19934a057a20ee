// Types as applications write them with zod. `node zod_types.mjs`, beside a node_modules with zod 4, prints a JSON Schema
// a line, by its name: zod's own, and for some also in draft 7.
import * as z from "zod";

const Address = z.object({ street: z.string(), city: z.string().min(1), zip: z.string().regex(/^\d{5}$/).optional() });
const Person = z.strictObject({ name: z.string().describe("In full"), age: z.number().int().nonnegative(), address: Address.nullable() });
const Shape = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("circle"), radius: z.number().positive() }),
  z.object({ kind: z.literal("square"), side: z.number().positive() }),
  z.object({ kind: z.literal("path"), points: z.array(z.tuple([z.number(), z.number()])).min(2) }),
]);
const Tree = z.object({ value: z.string(), get children() { return z.array(Tree); } });
const Json = z.lazy(() => z.union([z.string(), z.number(), z.boolean(), z.null(), z.array(Json), z.record(z.string(), Json)]));
const Status = z.enum(["open", "closed", "merged"]);

const types = {
  string: z.string(), number: z.number(), int: z.int(), int32: z.int32(), boolean: z.boolean(), null: z.null(), any: z.any(),
  unknown: z.unknown(), literal: z.literal("a"), "literal number": z.literal(42), literals: z.literal(["a", 1, null]),
  enum: Status, "native enum": z.enum({ Up: 0, Down: 1 }), address: Address, person: Person, "array": z.array(z.string()),
  "array of bounds": z.array(z.number()).min(1).max(3), nonempty: z.array(z.boolean()).nonempty(), tuple: z.tuple([z.string(), z.number()]),
  "tuple with rest": z.tuple([z.string()], z.number()), union: z.union([z.string(), z.number()]), optional: z.object({ a: z.string().optional() }),
  nullable: z.string().nullable(), nullish: z.object({ a: z.number().nullish() }), default: z.object({ a: z.number().default(3) }),
  record: z.record(z.string(), z.number()), "record of enum": z.record(Status, z.number()), "partial record": z.partialRecord(Status, z.boolean()),
  "record of pattern": z.record(z.string().regex(/^[a-z]+$/), z.int()), "record of any": z.record(z.string(), z.any()),
  shape: Shape, shapes: z.array(Shape), tree: Tree, json: Json, intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  extended: Address.extend({ country: z.string().length(2) }), picked: Person.pick({ name: true }), partial: Person.partial(),
  loose: z.looseObject({ a: z.string() }), catchall: z.object({ a: z.string() }).catchall(z.number()), never: z.object({ a: z.never().optional(), b: z.string() }),
  email: z.email(), url: z.url(), uuid: z.uuid(), uuidv4: z.uuidv4(), guid: z.guid(), nanoid: z.nanoid(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(),
  ipv4: z.ipv4(), ipv6: z.ipv6(), cidrv4: z.cidrv4(), base64: z.base64(), base64url: z.base64url(), e164: z.e164(), jwt: z.jwt(), emoji: z.emoji(),
  datetime: z.iso.datetime(), date: z.iso.date(), time: z.iso.time(), duration: z.iso.duration(), "local datetime": z.iso.datetime({ local: true, offset: true }),
  "starts with": z.string().startsWith("ab"), "ends with": z.string().endsWith(".ts"), includes: z.string().includes("x"), lowercase: z.string().lowercase(),
  uppercase: z.string().uppercase(), lengths: z.string().min(2).max(10), length: z.string().length(4), trim: z.string().trim(),
  positive: z.number().positive(), negative: z.number().negative(), range: z.number().gte(0).lt(1), multiple: z.number().multipleOf(0.25), step: z.int().multipleOf(5),
  "template literal": z.templateLiteral(["v", z.number()]), described: z.object({ a: z.string().meta({ title: "A", examples: ["x"] }) }).describe("An object"),
  "nested nullable": z.object({ a: z.object({ b: z.array(z.string().nullable()).nullable() }).nullable() }), readonly: z.object({ a: z.string() }).readonly(),
  branded: z.string().brand("id"), calendar: z.object({ name: z.string(), date: z.string(), participants: z.array(z.string()) }),
  "step by step": z.object({ steps: z.array(z.object({ explanation: z.string(), output: z.string() })), final_answer: z.string() }),
  moderation: z.object({ is_violating: z.boolean(), category: z.enum(["violence", "sexual", "self_harm"]).nullable(), explanation: z.string().nullable() }),
};
for (const [name, type] of Object.entries(types)) {
  for (const target of ["draft-2020-12", "draft-7"]) {
    const schema = z.toJSONSchema(type, { target });
    if (target === "draft-7" && !["tuple", "tuple with rest", "shape", "tree", "record of enum", "literals", "union"].includes(name)) continue;
    console.log(JSON.stringify({ from: "zod", name: target === "draft-7" ? `${name} (draft 7)` : name, schema }));
  }
}
