// Attention of some queries to the keys of their row, in pages. Part of variant.cc.
//
// Keys are taken in tiles that begin at multiples of kTile of their position. A score is summed over the elements of a
// key from the first to the last, a value over the keys from the first to the last, and what a query does not see is
// left out, not added as zero. So a query's result has the same bits whatever other queries it is with.
#ifndef JAXINFER_CPU_ATTENTION_H_
#define JAXINFER_CPU_ATTENTION_H_

#include "functions.h"
#include "held.h"
#include "kernels.h"
#include "simd.h"

namespace jaxinfer {
namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kMostQueries = 96;
#if JAXINFER_VECTOR_BYTES == 64
constexpr int kQueries = 6, kSums = 24;  // sums in registers, of 32
#else
constexpr int kQueries = 4, kSums = 8;  // of 16
#endif

constexpr int kFew = 4;  // queries of a head that take keys and values as they lie
// How many at once: each number is compiled for each type, and code that unpacks four keys from a word is long.
template <typename Page>
constexpr int kFewAtOnce = Page::kPer > 2 ? 2 : kFew;

// Vectors of sums for each of so many queries.
constexpr int vectors_for(int queries) {
  int vectors = 8;
  while (vectors * queries > kSums) vectors /= 2;
  return vectors;
}

constexpr int64_t filled(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

inline void store(float* to, Floats vector) { std::memcpy(to, &vector, sizeof vector); }

// As many as tiles are worth to be widened for, while what is kept of them fits into a cache of the second level: a
// multiple of kQueries.
int64_t most_queries(const Attention& attention) {
  return attention.key_dim + attention.value_dim <= 512 ? kMostQueries : kMostQueries / 2;
}

// What is kept of the queries, and of one tile.
struct Scratch {
  Scratch(const Attention& attention, float* from)
      : value_stride(filled(attention.value_dim, kWidth)),
        query(from),
        sums(query + most_queries(attention) * attention.key_dim),
        highest(sums + most_queries(attention) * value_stride),
        weight(highest + most_queries(attention)),
        scores(weight + most_queries(attention)),
        keys(scores + most_queries(attention) * kTile),
        values(keys + filled(attention.key_dim, 4 * kWidth) * kTile),
        zeros(values + kTile * value_stride) {
    std::memset(zeros, 0, attention.key_dim * sizeof(float));
  }

  static int64_t size(const Attention& attention) {
    const int64_t value_stride = filled(attention.value_dim, kWidth);
    return most_queries(attention) * (attention.key_dim + value_stride + 2 + kTile) +
           kTile * (filled(attention.key_dim, 4 * kWidth) + value_stride) + attention.key_dim;
  }

  int64_t value_stride;
  float* query;    // [most_queries, key_dim]
  float* sums;     // [most_queries, value_stride]
  float* highest;  // [most_queries], scores
  float* weight;   // [most_queries]
  float* scores;   // [most_queries, kTile], then weights
  float* keys;     // [key_dim, kTile]
  float* values;   // [kTile, value_stride]
  float* zeros;    // [key_dim], a key

  // Of each query of a head.
  int64_t position[kMostQueries];
};

int64_t attention_scratch(const Attention& attention) { return Scratch::size(attention); }

// A tile's keys [from, to), of which some query sees each, of one head.
struct Tile {
  int64_t begin, from, to;
  const char* keys[kTile];  // also of those that nobody sees, which are 0
  const char* values[kTile];  // as keys
};

// Finds the keys of a tile, of the first head; others are `zeros`. Pages that are not there are taken as the nearest.
template <typename Page>
void find(const Attention& attention, const Queries& queries, Tile& tile, const float* zeros) {
  for (int64_t i = 0; i < kTile; ++i) tile.keys[i] = tile.values[i] = reinterpret_cast<const char*>(zeros);
  for (int64_t i = tile.from; i < tile.to;) {
    const int64_t at = tile.begin + i, entry = at / attention.page_size, slot = at - entry * attention.page_size;
    const int64_t page = least(most(queries.table[least(entry, queries.entries - 1)], 0), attention.pages - 1);
    int64_t place = page * attention.page_stride + slot * attention.token_stride + queries.head * attention.head_stride;
    for (const int64_t end = least(tile.to, i + attention.page_size - slot); i < end; ++i) {
      tile.keys[i] = attention.keys + place * kBytes<Page>;
      tile.values[i] = attention.values + place * kBytes<Page>;
      place += attention.token_stride;
    }
  }
}

// Goes on to the next head.
template <typename Page>
void step(const Attention& attention, Tile& tile) {
  for (int64_t i = tile.from; i < tile.to; ++i) {
    tile.keys[i] += attention.head_stride * kBytes<Page>;
    tile.values[i] += attention.head_stride * kBytes<Page>;
  }
}

// Words of kWidth keys of a tile, from their element d on: after it, those of one place in all keys are a vector. What is
// needed next is fetched into the cache meanwhile, as tokens of one head lie too far from each other for the processor
// to see it come: the tile's values, and the keys of `next`, which lie by `further` bytes beyond its own.
template <typename Page>
inline void load_square(const Attention& attention, const Tile& tile, const Tile& next, int64_t further, int64_t first,
                        int64_t d, Words (&square)[kWidth]) {
  const int64_t left = attention.key_dim - d, at = d * kBytes<Page>;
  if (left >= kWidth * Page::kPer) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      square[i] = read<Words>(tile.keys[first + i] + at);
      __builtin_prefetch(tile.values[first + i] + at, 0, 2);
      __builtin_prefetch(next.keys[first + i] + further + at, 0, 2);
    }
  } else {
    for (int i = 0; i < kWidth; ++i) square[i] = words_of(tile.keys[first + i] + at, left * kBytes<Page>);
  }
  transpose(square);
}

// The tile's keys as float32, an element of all after another.
template <typename Page>
void widen_keys(const Attention& attention, const Tile& tile, const Tile& next, int64_t further, float* to) {
  for (int64_t first = 0; first < kTile; first += kWidth)
    for (int64_t d = 0; d < attention.key_dim; d += kWidth * Page::kPer) {
      Words square[kWidth];
      load_square<Page>(attention, tile, next, further, first, d, square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
#pragma GCC unroll 4
        for (int part = 0; part < Page::kPer; ++part)
          store(to + (d + i * Page::kPer + part) * kTile + first, part_of<Page>(square[i], part));
    }
}

// Products of kCount queries with all keys of the tile, without `widen_keys`, which a few queries are not worth.
template <typename Page, int kCount>
void score_few(const Attention& attention, const Tile& tile, const Tile& next, int64_t further, const float* query,
               float* scores) {
  constexpr int64_t kStep = kWidth * Page::kPer;
  const int64_t depth = attention.key_dim;
  Floats sums[kTile / kWidth][kCount] = {};
  for (int64_t d = 0; d < depth; d += kStep)
    for (int64_t column = 0; column < kTile / kWidth; ++column) {
      Words square[kWidth];
      load_square<Page>(attention, tile, next, further, column * kWidth, d, square);
      Floats own[kCount];
      for (int j = 0; j < kCount; ++j) own[j] = sums[column][j];
      if (d + kStep <= depth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
#pragma GCC unroll 4
          for (int part = 0; part < Page::kPer; ++part)
            for (int j = 0; j < kCount; ++j)
              own[j] += every(query[j * depth + d + i * Page::kPer + part]) * part_of<Page>(square[i], part);
      } else {
        for (int64_t i = 0; i < depth - d; ++i)
          for (int j = 0; j < kCount; ++j)
            own[j] += every(query[j * depth + d + i]) * part_of<Page>(square[i / Page::kPer], i % Page::kPer);
      }
      for (int j = 0; j < kCount; ++j) sums[column][j] = own[j];
    }
  for (int j = 0; j < kCount; ++j)
    for (int64_t column = 0; column < kTile / kWidth; ++column)
      store(scores + j * kTile + column * kWidth, sums[column][j]);
}

// The tile's values as float32, with zeros up to whole vectors.
template <typename Page>
void widen_values(const Attention& attention, const Tile& tile, const Scratch& scratch) {
  const int64_t size = attention.value_dim, whole = size / kWidth * kWidth;
  for (int64_t key = tile.from; key < tile.to; ++key) {
    float* to = scratch.values + key * scratch.value_stride;
    for (int64_t d = 0; d < whole; d += kWidth) store(to + d, load_held<Page>(tile.values[key] + d * kBytes<Page>));
    if (whole < size)
      store(to + whole, load_held_some<Page>(tile.values[key] + whole * kBytes<Page>, size - whole));
  }
}

// Values as `widen_values` left them.
struct Widened {
  const Scratch& scratch;
  Floats operator()(int64_t key, int64_t column) const {
    return load(scratch.values + key * scratch.value_stride + column);
  }
};

// Values as they lie in pages.
template <typename Page>
struct AsHeld {
  const Tile& tile;
  Floats operator()(int64_t key, int64_t column) const {
    return load_held<Page>(tile.values[key] + column * kBytes<Page>);
  }
};

// Products of kCount queries with all keys of the tile.
template <int kCount>
void score(const Attention& attention, const Scratch& scratch, int64_t first) {
  constexpr int kVectors = vectors_for(kCount) < kTile / kWidth ? vectors_for(kCount) : kTile / kWidth;
  const int64_t depth = attention.key_dim;
  const float* query = scratch.query + first * depth;
  for (int64_t column = 0; column < kTile; column += kVectors * kWidth) {
    const float* keys = scratch.keys + column;
    Floats sums[kCount][kVectors] = {};
    for (int64_t d = 0; d < depth; ++d) {
      Floats wide[kVectors];
      for (int j = 0; j < kVectors; ++j) wide[j] = load(keys + d * kTile + j * kWidth);
      for (int i = 0; i < kCount; ++i)
        for (int j = 0; j < kVectors; ++j) sums[i][j] += every(query[i * depth + d]) * wide[j];
    }
    for (int i = 0; i < kCount; ++i)
      for (int j = 0; j < kVectors; ++j) store(scratch.scores + (first + i) * kTile + column + j * kWidth, sums[i][j]);
  }
}

// Adds the values of the keys [from, to) to the sums of kCount queries.
template <int kCount, int kVectors, typename Values>
void add(const Scratch& scratch, const Values& values, int64_t first, int64_t column, int64_t from, int64_t to) {
  const float* weights = scratch.scores + first * kTile;
  float* at = scratch.sums + first * scratch.value_stride + column;
  Floats sums[kCount][kVectors];
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = load(at + i * scratch.value_stride + j * kWidth);
  for (int64_t key = from; key < to; ++key) {
    Floats wide[kVectors];
    for (int j = 0; j < kVectors; ++j) wide[j] = values(key, column + j * kWidth);
    for (int i = 0; i < kCount; ++i)
      for (int j = 0; j < kVectors; ++j) sums[i][j] += every(weights[i * kTile + key]) * wide[j];
  }
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < kVectors; ++j) store(at + i * scratch.value_stride + j * kWidth, sums[i][j]);
}

// The same for all columns from `column` on.
template <int kCount, int kVectors, typename Values>
void add_all(const Scratch& scratch, const Values& values, int64_t first, int64_t column, int64_t from, int64_t to) {
  for (; column + kVectors * kWidth <= scratch.value_stride; column += kVectors * kWidth)
    add<kCount, kVectors>(scratch, values, first, column, from, to);
  if constexpr (kVectors > 1) add_all<kCount, kVectors / 2>(scratch, values, first, column, from, to);
}

// Calls `body` with constants: as many queries as a block has, until `count` are done.
template <int kCount, typename Body>
void in_blocks(int64_t first, int64_t count, const Body& body) {
  for (; count >= kCount; first += kCount, count -= kCount) body.template run<kCount>(first);
  if constexpr (kCount > 1) in_blocks<kCount - 1>(first, count, body);
}

struct Score {
  const Attention& attention;
  const Scratch& scratch;
  template <int kCount>
  void run(int64_t first) const {
    score<kCount>(attention, scratch, first);
  }
};

template <typename Page>
struct ScoreFew {
  const Attention& attention;
  const Scratch& scratch;
  const Tile& tile;
  const Tile& next;
  int64_t further;
  template <int kCount>
  void run(int64_t first) const {
    score_few<Page, kCount>(attention, tile, next, further, scratch.query + first * attention.key_dim,
                            scratch.scores + first * kTile);
  }
};

template <typename Values>
struct Add {
  const Scratch& scratch;
  Values values;
  int64_t from, to;
  template <int kCount>
  void run(int64_t first) const {
    add_all<kCount, vectors_for(kCount)>(scratch, values, first, 0, from, to);
  }
};

// Half as many of the larger, or added, lanes; after all steps each lane has that of all.
template <int kHalf>
inline Floats turned(Floats vector) {
#if JAXINFER_VECTOR_BYTES == 64
  return __builtin_shufflevector(vector, vector, 0 ^ kHalf, 1 ^ kHalf, 2 ^ kHalf, 3 ^ kHalf,
                                 4 ^ kHalf, 5 ^ kHalf, 6 ^ kHalf, 7 ^ kHalf,
                                 8 ^ kHalf, 9 ^ kHalf, 10 ^ kHalf, 11 ^ kHalf,
                                 12 ^ kHalf, 13 ^ kHalf, 14 ^ kHalf, 15 ^ kHalf);
#elif JAXINFER_VECTOR_BYTES == 32
  return __builtin_shufflevector(vector, vector, 0 ^ kHalf, 1 ^ kHalf, 2 ^ kHalf, 3 ^ kHalf, 4 ^ kHalf, 5 ^ kHalf,
                                 6 ^ kHalf, 7 ^ kHalf);
#else
  return __builtin_shufflevector(vector, vector, 0 ^ kHalf, 1 ^ kHalf, 2 ^ kHalf, 3 ^ kHalf);
#endif
}

template <int kHalf = kWidth / 2>
inline Floats greatest(Floats vector) {
  vector = greater(vector, turned<kHalf>(vector));
  if constexpr (kHalf > 1) return greatest<kHalf / 2>(vector);
  return vector;
}

template <int kHalf = kWidth / 2>
inline Floats total(Floats vector) {
  vector += turned<kHalf>(vector);
  if constexpr (kHalf > 1) return total<kHalf / 2>(vector);
  return vector;
}

// The products of one query with a tile become scores, of which it sees [from, to), and these the weights of values.
// Returns what the sums before are to be multiplied with. NOTE: the same code for every query, as a compiler may join
// products and sums as it likes.
float weigh(const Attention& attention, float* scores, int64_t from, int64_t to, float& highest, float& weight) {
  constexpr int kVectors = kTile / kWidth;
  const Floats lowest = every(-__builtin_inff()), place = places();
  Floats found[kVectors], top = every(highest);
  for (int i = 0; i < kVectors; ++i) {
    Floats score = load(scores + i * kWidth) * every(attention.scale);
    if (attention.soft_cap != 0) score = every(attention.soft_cap) * tanh_of(score / every(attention.soft_cap));
    const Floats at = place + every(i * kWidth);
    const Ints seen = (at >= every(from)) & (at < every(to));
    found[i] = choose(seen, score, lowest);
    top = greater(found[i], top);
  }
  top = greatest(top);
  const Floats shift = choose(top == lowest, Floats{}, top);
  Floats sum{};
  for (int i = 0; i < kVectors; ++i) {
    const Floats weights = exp_of(found[i] - shift);
    store(scores + i * kWidth, weights);
    sum += weights;
  }
  const float keep = exp_of(every(highest) - shift)[0];
  highest = top[0];
  weight = weight * keep + total(sum)[0];
  return keep;
}

void scale_sums(const Scratch& scratch, int64_t query, float keep) {
  float* sums = scratch.sums + query * scratch.value_stride;
  for (int64_t d = 0; d < scratch.value_stride; d += kWidth) store(sums + d, load(sums + d) * every(keep));
}

struct Range {
  int64_t from, to;
};

// The keys of a tile that a query of a head sees.
inline Range seen(const Attention& attention, const Scratch& scratch, const Tile& tile, int64_t query) {
  const int64_t position = scratch.position[query];
  const int64_t first = attention.window ? position - attention.window + 1 : 0;
  return {most(first - tile.begin, 0), least(position + 1 - tile.begin, kTile)};
}

// The place among all heads of all tokens, of a query that is the i-th of those in work.
inline int64_t place_of(const Attention& attention, const Queries& queries, int64_t i) {
  const int64_t group = attention.query_heads / attention.kv_heads, count = queries.last - queries.first;
  const int64_t head = queries.head + i / count, query = queries.first + i % count;
  return (queries.offset + query / group) * attention.query_heads + head * group + query % group;
}

void begin(const Attention& attention, const Queries& queries, Scratch& scratch) {
  const int64_t group = attention.query_heads / attention.kv_heads, count = queries.last - queries.first;
  for (int64_t i = 0; i < count; ++i) scratch.position[i] = queries.start + (queries.first + i) / group;
  for (int64_t i = 0; i < queries.heads * count; ++i) {
    const int64_t place = place_of(attention, queries, i);
    float* to = scratch.query + i * attention.key_dim;
    if (attention.q_type == Type::kFloat32) {
      const float* from = static_cast<const float*>(attention.q) + place * attention.key_dim;
      std::memcpy(to, from, attention.key_dim * sizeof(float));
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(attention.q) + place * attention.key_dim;
      for (int64_t d = 0; d < attention.key_dim; ++d) {
        const uint32_t bits = static_cast<uint32_t>(from[d]) << 16;
        std::memcpy(to + d, &bits, sizeof bits);
      }
    }
    scratch.highest[i] = attention.sinks ? attention.sinks[place % attention.query_heads] : -__builtin_inff();
    scratch.weight[i] = attention.sinks ? 1 : 0;
    std::memset(scratch.sums + i * scratch.value_stride, 0, scratch.value_stride * sizeof(float));
  }
}

void finish(const Attention& attention, const Queries& queries, const Scratch& scratch) {
  for (int64_t i = 0; i < queries.heads * (queries.last - queries.first); ++i) {
    const int64_t place = place_of(attention, queries, i) * attention.value_dim;
    const float weight = scratch.weight[i] > 0 ? scratch.weight[i] : 1;
    const float* sums = scratch.sums + i * scratch.value_stride;
    for (int64_t d = 0; d < attention.value_dim; ++d) {
      const float value = sums[d] / weight * attention.value_scale;
      if (attention.q_type == Type::kFloat32)
        static_cast<float*>(attention.out)[place + d] = value;
      else
        static_cast<BFloat16*>(attention.out)[place + d] = rounded(value);
    }
  }
}

// The products of queries become weights, and values are added to their sums.
template <typename Values>
void add_values(const Attention& attention, int64_t base, int64_t count, const Tile& tile, const Scratch& scratch,
                const Values& values) {
  for (int64_t first = 0, next; first < count; first = next) {
    const Range keys = seen(attention, scratch, tile, first);
    for (next = first; next < count; ++next) {
      const Range own = seen(attention, scratch, tile, next);
      if (own.from != keys.from || own.to != keys.to) break;
      if (keys.from >= keys.to) continue;
      const int64_t query = base + next;
      const float keep = weigh(attention, scratch.scores + query * kTile, keys.from, keys.to, scratch.highest[query],
                               scratch.weight[query]);
      if (keep != 1) scale_sums(scratch, query, keep);
    }
    if (keys.from < keys.to)
      in_blocks<kQueries>(base + first, next - first, Add<Values>{scratch, values, keys.from, keys.to});
  }
}

// Adds one head's keys and values of a tile to the sums of its queries, of which `base` is the first.
template <typename Page>
void add_tile(const Attention& attention, int64_t base, int64_t count, const Tile& tile, const Tile& next,
              int64_t further, const Scratch& scratch) {
  if (count <= kFew) {
    in_blocks<kFewAtOnce<Page>>(base, count, ScoreFew<Page>{attention, scratch, tile, next, further});
  } else {
    widen_keys<Page>(attention, tile, next, further, scratch.keys);
    in_blocks<kQueries>(base, count, Score{attention, scratch});
  }
  if (attention.value_dim % kWidth == 0 && (Page::kPer == 1 || count <= kFew))
    return add_values(attention, base, count, tile, scratch, AsHeld<Page>{tile});
  widen_values<Page>(attention, tile, scratch);
  add_values(attention, base, count, tile, scratch, Widened{scratch});
}

template <typename Page>
void attend_held(const Attention& attention, const Queries& queries, Scratch& scratch) {
  begin(attention, queries, scratch);
  const int64_t count = queries.last - queries.first, last = scratch.position[count - 1];
  const int64_t first = attention.window ? most(scratch.position[0] - attention.window + 1, 0) : 0;
  Tile tiles[2];
  const auto look = [&](int64_t at, Tile& tile) {
    tile.begin = at, tile.from = most(first - at, 0), tile.to = most(least(last + 1 - at, kTile), 0);
    find<Page>(attention, queries, tile, scratch.zeros);
  };
  int64_t at = first / kTile * kTile;
  look(at, tiles[0]);
  for (int64_t i = 0; at <= last; at += kTile, ++i) {
    Tile &tile = tiles[i % 2], &next = tiles[(i + 1) % 2];
    look(at + kTile, next);
    for (int64_t head = 0; head < queries.heads; ++head) {
      if (head) step<Page>(attention, tile);
      const bool more = head + 1 < queries.heads;
      add_tile<Page>(attention, head * count, count, tile, more ? tile : next,
                     more ? attention.head_stride * kBytes<Page> : 0, scratch);
    }
  }
  finish(attention, queries, scratch);
}

void attend(const Attention& attention, const Queries& queries, float* from) {
  Scratch scratch(attention, from);
  switch (attention.held) {
    case Held::kFloat32:
      return attend_held<Float32s>(attention, queries, scratch);
    case Held::kBFloat16:
      return attend_held<BFloat16s>(attention, queries, scratch);
    case Held::kFloat16:
      return attend_held<Float16s>(attention, queries, scratch);
    case Held::kFloat8E4M3:
      return attend_held<E4M3s>(attention, queries, scratch);
    case Held::kFloat8E5M2:
      return attend_held<E5M2s>(attention, queries, scratch);
    case Held::kInt8:
      return attend_held<Int8s>(attention, queries, scratch);
  }
}

}  // namespace
}  // namespace jaxinfer

#endif  // JAXINFER_CPU_ATTENTION_H_
