// What the kernels are given, and one table of them for each set of instructions (variant.cc).
#ifndef JAXINFER_CPU_KERNELS_H_
#define JAXINFER_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace jaxinfer {

// kInt4: packed in blocks of kInt4Block values. Byte i of a block has the i-th value in its low four bits, and the one
// half a block further in its high ones.
enum class Type : int32_t { kFloat32, kBFloat16, kInt8, kInt4 };
constexpr int64_t kInt4Block = 32;

// Rows [begin, end) of x times the transpose of one matrix: out[t, n] = sum over k of x[t, k] * w[n, k], times scales
// if there are any: w counts as (code - zero) * scale with a scale, and maybe a zero, for each group of a row's values.
//
// x: [*, K] of x_type, with rows of `stride` elements. Where it is of bfloat16 and the matrix is not, a row is filled up
// with 0 to a multiple of kInt4Block, and values take turns: in a block each of its first half is followed by that which
// lies half a block further. out: [*, N] of out_type.
struct Product {
  const void* x;
  Type x_type;
  int64_t stride;
  int64_t begin, end;
  const void* w;
  Type w_type;
  int64_t rows, depth;  // N and K
  const float* scales;  // [N, K / group], or null
  const float* zeros;   // as scales, or null
  int64_t group;
  void* out;
  Type out_type;
};

// Lanes of float32 in the widest vector: groups must be a multiple.
constexpr int64_t kLanes = 16;
// The longest groups of codes that are multiplied with bfloat16.
constexpr int64_t kMostPaired = 512;

// What pages hold, and `held_type` of attention.py.
enum class Held : int32_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3, kFloat8E5M2, kInt8 };

// Attention over the pages of one layer. Strides and sizes are in elements.
struct Attention {
  const void* q;  // [T, query_heads, key_dim] of q_type, float32 or bfloat16
  Type q_type;
  void* out;          // [T, query_heads, value_dim] of q_type
  const char* keys;   // of the first head of the first token of page 0; its token's others lie behind it
  const char* values;
  Held held;
  int64_t pages, page_size, page_stride, token_stride, head_stride;
  int64_t query_heads, kv_heads, key_dim, value_dim;
  float scale;          // of the scores, with the keys' own
  float value_scale;
  float soft_cap;       // 0: none
  int64_t window;       // 0: none
  const float* sinks;   // [query_heads], or null
};

// Some of the queries of a row, the same of each of some KV heads. Query i of a head is of token i / group of the row,
// and there the query head head * group + i % group, if group is the number of query heads for each KV head.
struct Queries {
  const int32_t* table;  // the row's page ids
  int64_t entries;       // of the table
  int64_t start;         // position of the row's first token
  int64_t offset;        // its index in T
  int64_t head, heads;   // the first, and how many
  int64_t first, last;
};

struct Kernels {
  const char* name;
  // The product's rows [first, last) of the matrix, if x is of float32; of int8, as is the matrix; of bfloat16, with a
  // matrix of bfloat16 or of codes: in groups that are a multiple of kInt4Block up to kMostPaired, or in whole rows
  // without zeros. The last may be null: x is then taken as float32. Sums have
  // the same order whatever the rows of x and of the matrix.
  void (*multiply)(const Product& product, int64_t first, int64_t last);
  void (*multiply_codes)(const Product& product, int64_t first, int64_t last);
  void (*multiply_bfloat16)(const Product& product, int64_t first, int64_t last);
  // The most queries that `attend` takes at once, of all heads together, and how many floats it works on besides.
  int64_t (*most_queries)(const Attention& attention);
  int64_t (*attention_scratch)(const Attention& attention);
  // Attends from the queries. A query's sums have one order, whatever others it is with.
  void (*attend)(const Attention& attention, const Queries& queries, float* scratch);
};

// The table for this processor: the widest that it has.
const Kernels& kernels();

}  // namespace jaxinfer

#endif  // JAXINFER_CPU_KERNELS_H_
