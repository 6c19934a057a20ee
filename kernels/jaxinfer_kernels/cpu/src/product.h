// Products of a few rows, or many, with one matrix. Part of variant.cc and short_products.cc.
//
// A tile of the result is kept in registers, one vector for each of its values, which takes kWidth of the products at a
// time, from the first to the last; its lanes are added at the end. So a value's sum has one order, whatever tile it is
// in. Tiles differ by how many rows of x there are: a lone row needs many of the matrix's to keep loads in flight.
#ifndef JAXINFER_CPU_PRODUCT_H_
#define JAXINFER_CPU_PRODUCT_H_

#include "kernels.h"
#include "simd.h"

namespace jaxinfer {
namespace {

#if JAXINFER_VECTOR_BYTES == 64
constexpr int kTileRows = 6, kMostRows = 8;  // the latter are not divided
constexpr int columns_of(int rows) { return rows == 1 ? 8 : rows > kTileRows ? 3 : 4; }  // 24 sums, of 32 registers
#else
constexpr int kTileRows = 4, kMostRows = 4;
constexpr int columns_of(int rows) { return rows == 1 ? 8 : 2; }  // 8 sums, of 16 registers
#endif
constexpr int kTileColumns = columns_of(kTileRows);
constexpr int64_t kPile = 10;     // whole tiles whose sums are kept at once
constexpr int64_t kStepBytes = 2560;  // of a row, at most: for these columns tiles come from the first cache
constexpr int64_t kStep = kStepBytes / sizeof(float);

template <int kColumns>
void put(const Product& product, int64_t row, int64_t column, const float (&values)[kColumns]) {
  const int64_t at = row * product.rows + column;
  if (product.out_type == Type::kFloat32) {
    std::memcpy(static_cast<float*>(product.out) + at, values, sizeof values);
    return;
  }
  BFloat16 short_values[kColumns];
  for (int j = 0; j < kColumns; ++j) short_values[j] = rounded(values[j]);
  std::memcpy(static_cast<BFloat16*>(product.out) + at, short_values, sizeof short_values);
}

// How a matrix is held, each row's columns in groups. Each form has
//
//     Sums                         by which `accumulate` its values are multiplied
//     kLine                        how many values lie in a line of the cache
//     kIsDecoded                   whether it pays to decode values once that several tiles multiply
//     whole()                      columns that are added as a whole
//     prefetch(row, k)
//     finish(row, total)           the sum of a row's products, times what was left out of its values
//
// Those of this file have, besides,
//
//     kVectors                     how many vectors `load` gives
//     Scale                        what the values of a group of a row share
//     group()                      columns of a group; of the last one, maybe more than there are
//     scale(row, group)
//     load(row, k, scale, to)      values from column k on, as float32
//     load_some(row, k, count, scale)  as above one vector, of a last group that is no multiple of what `load` gives

struct None {};
struct OfFloats {};  // values become float32
constexpr int64_t kLines = 2 * kLineBytes;  // values in whole lines, of whatever type

// Values that count as they are, or codes with one scale a row.
template <typename W>
class Plain {
 public:
  using Sums = OfFloats;
  static constexpr int64_t kLine = kLineBytes / sizeof(W);
  static constexpr int kVectors = 1;
  static constexpr bool kIsDecoded = !std::is_same_v<W, float>;
  using Scale = None;

  explicit Plain(const Product& product)
      : depth_(product.depth), w_(static_cast<const W*>(product.w)), scales_(product.scales) {}

  int64_t whole() const { return kLines; }
  int64_t group() const { return depth_; }
  Scale scale(int64_t, int64_t) const { return {}; }
  void load(int64_t row, int64_t k, Scale, Floats (&to)[1]) const { to[0] = jaxinfer::load(at(row, k)); }
  Floats load_some(int64_t row, int64_t k, int64_t count, Scale) const {
    return jaxinfer::load_some(at(row, k), count);
  }
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(at(row, k), 0, 2); }
  float finish(int64_t row, float total) const { return scales_ ? total * scales_[row] : total; }

 private:
  const W* at(int64_t row, int64_t k) const { return w_ + row * depth_ + k; }

  const int64_t depth_;
  const W* const w_;
  const float* const scales_;
};

// Codes of int8 with a scale, and maybe a zero, for each group.
template <bool kZeros>
class Grouped {
 public:
  using Sums = OfFloats;
  static constexpr int64_t kLine = kLineBytes;
  static constexpr int kVectors = 1;
  static constexpr bool kIsDecoded = true;
  struct Scale {
    Floats scale, zero;
  };

  explicit Grouped(const Product& product) : product_(product), groups_(product.depth / product.group) {}

  int64_t whole() const { return kLines; }
  int64_t group() const { return product_.group; }
  Scale scale(int64_t row, int64_t group) const {
    const int64_t place = row * groups_ + group;
    return {every(product_.scales[place]), every(kZeros ? product_.zeros[place] : 0)};
  }
  void load(int64_t row, int64_t k, const Scale& scale, Floats (&to)[1]) const {
    to[0] = value<kZeros>(jaxinfer::load(at(row, k)), scale.scale, scale.zero);
  }
  Floats load_some(int64_t row, int64_t k, int64_t count, const Scale& scale) const {
    return value<kZeros>(jaxinfer::load_some(at(row, k), count), scale.scale, scale.zero);
  }
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(at(row, k), 0, 2); }
  float finish(int64_t, float total) const { return total; }

 private:
  const int8_t* at(int64_t row, int64_t k) const {
    return static_cast<const int8_t*>(product_.w) + row * product_.depth + k;
  }

  const Product product_;
  const int64_t groups_;
};

// Codes of four bits with a scale, and maybe a zero, for each group, or for a row: in blocks of kInt4Block.
template <bool kZeros>
class Packed {
 public:
  using Sums = OfFloats;
  static constexpr int64_t kLine = 2 * kLineBytes;
  static constexpr int kVectors = kInt4Block / kWidth;
  static constexpr bool kIsDecoded = true;
  using Scale = Int4Values;

  explicit Packed(const Product& product) : product_(product), groups_(product.depth / product.group) {}

  int64_t whole() const { return kLines; }
  int64_t group() const { return product_.group; }
  Scale scale(int64_t row, int64_t group) const {
    if (!kZeros && groups_ == 1) return Int4Values::of<kZeros>(1, 0);
    const int64_t place = row * groups_ + group;
    return Int4Values::of<kZeros>(product_.scales[place], kZeros ? product_.zeros[place] : 0);
  }
  void load(int64_t row, int64_t k, const Scale& scale, Floats (&to)[kVectors]) const {
    const uint8_t* from = at(row, k);
    constexpr int kHalf = kVectors / 2;
    for (int i = 0; i < kHalf; ++i) {
      const Ints bytes = widened(from + i * kWidth);
      to[i] = scale.template values<kZeros>(bytes);
      to[kHalf + i] = scale.template values<kZeros>(bytes >> 4);
    }
  }
  Floats load_some(int64_t, int64_t, int64_t, const Scale&) const { return every(0); }  // groups are whole blocks
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(at(row, k), 0, 2); }
  float finish(int64_t row, float total) const {  // a scale a row counts at the end, as of int8
    return !kZeros && groups_ == 1 ? total * product_.scales[row] : total;
  }

 private:
  const uint8_t* at(int64_t row, int64_t k) const {
    return static_cast<const uint8_t*>(product_.w) + (row * product_.depth + k) / 2;
  }

  const Product product_;
  const int64_t groups_;
};

// Rows from `row` on of a matrix, decoded from column `low` on: what `decode` gives.
class Decoded {
 public:
  using Sums = OfFloats;
  static constexpr int kVectors = 1;
  using Scale = None;

  Decoded(const float* values, int64_t row, int64_t low) : values_(values), row_(row), low_(low) {}

  int64_t group() const { return int64_t{1} << 62; }  // all columns
  Scale scale(int64_t, int64_t) const { return {}; }
  void load(int64_t row, int64_t k, Scale, Floats (&to)[1]) const { to[0] = read<Floats>(at(row, k)); }
  Floats load_some(int64_t row, int64_t k, int64_t, Scale) const { return read<Floats>(at(row, k)); }

 private:
  const float* at(int64_t row, int64_t k) const { return values_ + (row - row_) * kStep + k - low_; }

  const float* const values_;
  const int64_t row_, low_;
};

// Decodes columns [low, high) of kColumns rows into memory of kStepBytes for each.
template <int kColumns, typename Matrix>
Decoded decode(OfFloats, const Matrix& matrix, int64_t row, int64_t low, int64_t high, void* memory) {
  float* to = static_cast<float*>(memory);
  constexpr int64_t kSpan = Matrix::kVectors * kWidth;
  int64_t k = low;
  for (int64_t group = low / matrix.group(); k < high; ++group) {
    const int64_t stop = least((group + 1) * matrix.group(), high);
    typename Matrix::Scale scale[kColumns];
    for (int j = 0; j < kColumns; ++j) scale[j] = matrix.scale(row + j, group);
    for (; k + kSpan <= stop; k += kSpan) {
      if (k % Matrix::kLine == 0)
        for (int j = 0; j < kColumns; ++j) matrix.prefetch(row + kColumns + j, k);
      for (int j = 0; j < kColumns; ++j) {
        Floats w[Matrix::kVectors];
        matrix.load(row + j, k, scale[j], w);
        std::memcpy(to + j * kStep + k - low, w, sizeof w);
      }
    }
    for (; k < stop; k += kWidth)
      for (int j = 0; j < kColumns; ++j) {
        const Floats w = matrix.load_some(row + j, k, least(stop - k, kWidth), scale[j]);
        std::memcpy(to + j * kStep + k - low, &w, sizeof w);
      }
    k = stop;
  }
  return {to, row, low};
}

// Adds to the sums of a tile, which begins at that row of x and that of the matrix, the products of columns [low, high)
// of both. Rows of the tile from `last` on repeat the one before it; `finish` drops them. kAhead: whether the tile
// beside it, which comes next, is fetched meanwhile: rows of a matrix may be too short for the processor to see where
// they go on.
template <int kRows, int kColumns, bool kAhead, typename Matrix>
void accumulate(OfFloats, const Product& product, const Matrix& matrix, int64_t row, int64_t last, int64_t column,
                int64_t low, int64_t high, Floats (&total)[kRows][kColumns]) {
  constexpr int64_t kSpan = Matrix::kVectors * kWidth;
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i)
    x[i] = static_cast<const float*>(product.x) + least(row + i, last - 1) * product.stride;
  Floats sums[kRows][kColumns];
  std::memcpy(sums, total, sizeof sums);
  int64_t k = low;
  for (int64_t group = low / matrix.group(); k < high; ++group) {
    const int64_t stop = least((group + 1) * matrix.group(), high);
    typename Matrix::Scale scale[kColumns];
    for (int j = 0; j < kColumns; ++j) scale[j] = matrix.scale(column + j, group);
    for (; k + kSpan <= stop; k += kSpan) {
      if constexpr (kAhead)
        if (k % Matrix::kLine == 0)
          for (int j = 0; j < kColumns; ++j) matrix.prefetch(column + kColumns + j, k);
      Floats w[kColumns][Matrix::kVectors];
      for (int j = 0; j < kColumns; ++j) matrix.load(column + j, k, scale[j], w[j]);
      for (int v = 0; v < Matrix::kVectors; ++v)
        for (int i = 0; i < kRows; ++i) {
          const Floats xs = load(x[i] + k + v * kWidth);
          for (int j = 0; j < kColumns; ++j) sums[i][j] += xs * w[j][v];
        }
    }
    for (int j = 0; k < stop && j < kColumns; ++j) {  // x is 0 in the lanes beyond
      const Floats w = matrix.load_some(column + j, k, stop - k, scale[j]);
      for (int i = 0; i < kRows; ++i) sums[i][j] += load_some(x[i] + k, stop - k) * w;
    }
    k = stop;
  }
  std::memcpy(total, sums, sizeof sums);
}

template <int kRows, int kColumns, typename Matrix>
void finish(const Product& product, const Matrix& matrix, int64_t row, int64_t last, int64_t column,
            const Floats (&sums)[kRows][kColumns]) {
  for (int i = 0; i < kRows && row + i < last; ++i) {
    float values[kColumns];
    sum_each(sums[i], values);
    for (int j = 0; j < kColumns; ++j) values[j] = matrix.finish(column + j, values[j]);
    put(product, row + i, column, values);
  }
}

// Calls body with a tile's rows as a constant: at least as many, of a few numbers, since each is compiled.
template <typename Body>
void with_rows(int64_t rows, const Body& body) {
  if (rows == 1) return body(std::integral_constant<int, 1>());
  if (rows == 2) return body(std::integral_constant<int, 2>());
  if (rows <= 4) return body(std::integral_constant<int, 4>());
  if constexpr (kTileRows > 4)
    if (rows <= kTileRows) return body(std::integral_constant<int, kTileRows>());
  if constexpr (kMostRows > kTileRows) body(std::integral_constant<int, kMostRows>());
}

// Rows of x [begin, end), which are one tile, and all of the matrix's from first to last.
template <int kRows, int kColumns, typename Matrix>
void across(const Product& product, const Matrix& matrix, int64_t begin, int64_t end, int64_t first, int64_t last) {
  using Sums = typename Matrix::Sums;
  int64_t column = first;
  const auto tile = [&](auto columns) {
    Floats sums[kRows][columns.value] = {};
    accumulate<kRows, columns.value, true>(Sums(), product, matrix, begin, end, column, 0, product.depth, sums);
    finish<kRows, columns.value>(product, matrix, begin, end, column, sums);
    column += columns.value;
  };
  while (column + kColumns <= last) tile(std::integral_constant<int, kColumns>());
  while (column < last) tile(std::integral_constant<int, 1>());
}

// Steps of about the same length, each a multiple of `whole`.
inline int64_t step_of(int64_t depth, int64_t most, int64_t whole) {
  const int64_t steps = (depth + most - 1) / most, step = (depth + steps - 1) / steps;
  return least((step + whole - 1) / whole, most / whole) * whole;
}

// Tiles below each other, of kTileRows of the rows of x [begin, end) and one of what is left. All of their sums are
// kept while a few columns at a time of x and of the matrix come from the first cache, the latter decoded once for all
// tiles.
template <int kColumns, typename Matrix>
void pile(const Product& product, const Matrix& matrix, int64_t begin, int64_t end, int64_t column) {
  using Sums = typename Matrix::Sums;
  alignas(kLineBytes) char decoded[Matrix::kIsDecoded ? kColumns * kStepBytes : 1];
  Floats sums[kPile + 1][kTileRows][kColumns] = {};
  const auto tiles = [&](const auto& each) {  // each(rows, row, its sums)
    int64_t row = begin;
    Floats(*of)[kTileRows][kColumns] = sums;
    for (; row + kTileRows <= end; row += kTileRows, ++of) each(std::integral_constant<int, kTileRows>(), row, *of);
    if (row == end) return;
    with_rows(end - row, [&](auto rows) {
      if constexpr (rows.value <= kTileRows) each(rows, row, reinterpret_cast<Floats(&)[rows.value][kColumns]>(*of));
    });
  };
  const int64_t bytes = product.x_type == Type::kFloat32 ? sizeof(float) : sizeof(BFloat16);
  const int64_t step = step_of(product.depth, kStepBytes / bytes, matrix.whole());
  for (int64_t low = 0; low < product.depth; low += step) {
    const int64_t high = least(low + step, product.depth);
    const auto add = [&](const auto& values) {
      tiles([&](auto rows, int64_t row, auto& of) {
        constexpr bool kAhead = std::is_same_v<decltype(values), const Matrix&>;
        accumulate<rows.value, kColumns, kAhead>(Sums(), product, values, row, end, column, low, high, of);
      });
    };
    if constexpr (Matrix::kIsDecoded) {
      add(decode<kColumns>(Sums(), matrix, column, low, high, decoded));
    } else {
      add(matrix);
    }
  }
  tiles([&](auto rows, int64_t row, auto& of) { finish<rows.value, kColumns>(product, matrix, row, end, column, of); });
}

template <typename Matrix>
void blocks(const Product& product, const Matrix& matrix, int64_t first, int64_t last) {
  for (int64_t begin = product.begin, end; begin < product.end; begin = end) {
    end = least(begin + kPile * kTileRows, product.end);
    if (end - begin > kMostRows) {
      int64_t column = first;
      for (; column + kTileColumns <= last; column += kTileColumns)
        pile<kTileColumns>(product, matrix, begin, end, column);
      for (; column < last; ++column) pile<1>(product, matrix, begin, end, column);
      continue;
    }
    with_rows(end - begin, [&](auto rows) {
      across<rows.value, columns_of(rows.value)>(product, matrix, begin, end, first, last);
    });
  }
}

// Codes times codes: sums of integers, exact in any order.
inline void multiply_codes(const Product& product, int64_t first, int64_t last) {
  const int64_t depth = product.depth;
  for (int64_t column = first; column < last; ++column)
    for (int64_t row = product.begin; row < product.end; ++row) {
      const int8_t* x = static_cast<const int8_t*>(product.x) + row * product.stride;
      const int8_t* w = static_cast<const int8_t*>(product.w) + column * depth;
      int32_t total = 0;
      for (int64_t k = 0; k < depth; ++k) total += static_cast<int16_t>(x[k]) * static_cast<int16_t>(w[k]);
      put(product, row, column, {static_cast<float>(total) * product.scales[column]});
    }
}

// x of float32 times any matrix.
inline void multiply(const Product& product, int64_t first, int64_t last) {
  switch (product.w_type) {
    case Type::kFloat32:
      return blocks(product, Plain<float>(product), first, last);
    case Type::kBFloat16:
      return blocks(product, Plain<BFloat16>(product), first, last);
    case Type::kInt8:
      if (product.group == product.depth && !product.zeros)
        return blocks(product, Plain<int8_t>(product), first, last);
      if (product.zeros) return blocks(product, Grouped<true>(product), first, last);
      return blocks(product, Grouped<false>(product), first, last);
    case Type::kInt4:
      if (product.zeros) return blocks(product, Packed<true>(product), first, last);
      return blocks(product, Packed<false>(product), first, last);
  }
}

}  // namespace
}  // namespace jaxinfer

#endif  // JAXINFER_CPU_PRODUCT_H_
