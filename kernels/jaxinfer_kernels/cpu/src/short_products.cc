// Products of short types by instructions that processors with AVX-512 may have besides: AVX512_BF16 and VNNI.
//
// VDPBF16PS multiplies pairs of bfloat16 and adds both products to a lane of float32. Codes of int8 and int4 are exact in
// bfloat16, so that a group's codes are multiplied as they are, and its sum with its scale.
#include "kernels.h"
#include "product.h"

namespace jaxinfer {
namespace {

struct InPairs {};
constexpr int64_t kPairs = 2 * kWidth;  // values of a vector

// How values of a matrix are held that are multiplied in pairs. Each form has, beside what product.h says,
//
//     kIsScaled   whether groups have scales, which count at the end of each
//     kHasZeros   whether they have zeros, too
//     load(row, k, count)  kPairs values from column k on, of which `count` are there and the others 0
//
// x has values in the same order as `load`: of codes, each kPairs values begin with the first of both halves, then the
// second of both, and so on.

class ShortPairs {
 public:
  using Sums = InPairs;
  static constexpr bool kIsDecoded = false, kIsScaled = false, kHasZeros = false;
  static constexpr int64_t kLine = kPairs;

  explicit ShortPairs(const Product& product)
      : depth_(product.depth), w_(static_cast<const BFloat16*>(product.w)) {}

  int64_t whole() const { return kLines; }
  __m512bh load(int64_t row, int64_t k, int64_t count) const { return some(w_ + row * depth_ + k, count); }
  static __m512bh load_x(const BFloat16* from, int64_t count) { return some(from, count); }
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(w_ + row * depth_ + k, 0, 2); }
  float finish(int64_t, float total) const { return total; }

 private:
  static __m512bh some(const BFloat16* from, int64_t count) {
    if (count >= kPairs) return read<__m512bh>(from);
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
  }

  const int64_t depth_;
  const BFloat16* const w_;
};

// Scales of codes, one for each group, or for each row.
template <bool kScaled, bool kZeros>
class Scales {
 public:
  using Sums = InPairs;
  static constexpr bool kIsScaled = kScaled, kHasZeros = kZeros;

  explicit Scales(const Product& product) : product_(product), groups_(product.depth / product.group) {}

  int64_t whole() const { return kScaled ? product_.group : kLines; }
  int64_t group() const { return product_.group; }
  __m512 scale(int64_t row, int64_t group) const { return (__m512)every(product_.scales[row * groups_ + group]); }
  __m512 zero(int64_t row, int64_t group) const { return (__m512)every(product_.zeros[row * groups_ + group]); }
  static __m512bh load_x(const BFloat16* from, int64_t) { return read<__m512bh>(from); }
  float finish(int64_t row, float total) const { return kScaled ? total : total * product_.scales[row]; }

 protected:
  const Product product_;
  const int64_t groups_;
};

template <bool kScaled, bool kZeros>
class Int8Pairs : public Scales<kScaled, kZeros> {
 public:
  using Scaled = Scales<kScaled, kZeros>;
  static constexpr bool kIsDecoded = true;
  static constexpr int64_t kLine = kLineBytes;

  explicit Int8Pairs(const Product& product) : Scaled(product) {}

  __m512bh load(int64_t row, int64_t k, int64_t count) const {
    const int8_t* from = at(row, k);
    const __m256i codes = count >= kPairs ? read<__m256i>(from)
                                          : _mm256_maskz_loadu_epi8((__mmask32)((1u << count) - 1), from);
    const Words low = bits(_mm256_castsi256_si128(codes)), high = bits(_mm256_extracti128_si256(codes, 1));
    return (__m512bh)(low >> 16 | (high & 0xffff0000u));
  }
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(at(row, k), 0, 2); }

 private:
  const int8_t* at(int64_t row, int64_t k) const {
    return static_cast<const int8_t*>(this->product_.w) + row * this->product_.depth + k;
  }
  static Words bits(__m128i codes) {
    return (Words)__builtin_convertvector((Ints)_mm512_maskz_cvtepi8_epi32(0xffff, codes), Floats);
  }
};

template <bool kScaled, bool kZeros>
class Int4Pairs : public Scales<kScaled, kZeros> {
 public:
  using Scaled = Scales<kScaled, kZeros>;
  static constexpr bool kIsDecoded = true;
  static constexpr int64_t kLine = 2 * kLineBytes;

  explicit Int4Pairs(const Product& product) : Scaled(product) {
    uint16_t values[kPairs];
    for (int i = 0; i < kPairs; ++i) values[i] = rounded(static_cast<float>(((i & 15) ^ 8) - 8)).bits;
    table_ = read<__m512i>(values);
  }

  __m512bh load(int64_t row, int64_t k, int64_t) const {
    const __m512i bytes = _mm512_maskz_cvtepu8_epi32(0xffff, read<__m128i>(at(row, k)));
    const __m512i codes = bytes | _mm512_maskz_slli_epi32(0xffff, bytes, 12);  // in each half of a lane: four bits count
    return (__m512bh)_mm512_maskz_permutexvar_epi16(0xffffffff, codes, table_);
  }
  void prefetch(int64_t row, int64_t k) const { __builtin_prefetch(at(row, k), 0, 2); }

 private:
  const uint8_t* at(int64_t row, int64_t k) const {
    return static_cast<const uint8_t*>(this->product_.w) + (row * this->product_.depth + k) / 2;
  }

  __m512i table_;  // the value of each code, twice, since `codes` have a fifth bit of whatever lies beside
};

// Rows from `row` on of a matrix of codes, which lie in bfloat16 from column `low` on.
template <typename Scaled>
class DecodedPairs : public Scaled {
 public:
  DecodedPairs(const Scaled& scales, const void* values, int64_t row, int64_t low)
      : Scaled(scales), values_(static_cast<const char*>(values)), row_(row), low_(low) {}

  __m512bh load(int64_t row, int64_t k, int64_t) const {
    return read<__m512bh>(values_ + (row - row_) * kStepBytes + (k - low_) * sizeof(BFloat16));
  }

 private:
  const char* const values_;
  const int64_t row_, low_;
};

template <int kColumns, typename Matrix>
DecodedPairs<typename Matrix::Scaled> decode(InPairs, const Matrix& matrix, int64_t row, int64_t low, int64_t high,
                                             void* to) {
  for (int64_t k = low; k < high; k += kPairs)
    for (int j = 0; j < kColumns; ++j) {
      if (k % Matrix::kLine == 0) matrix.prefetch(row + kColumns + j, k);
      const __m512bh values = matrix.load(row + j, k, high - k);
      std::memcpy(static_cast<char*>(to) + j * kStepBytes + (k - low) * sizeof(BFloat16), &values, sizeof values);
    }
  return {matrix, to, row, low};
}

// Takes from the sums of a group what its zeros make of the sum of x.
template <int kRows, int kColumns, typename Matrix>
void take_zeros(const Matrix& matrix, const BFloat16* (&x)[kRows], int64_t column, int64_t group,
                __m512 (&sums)[kRows][kColumns]) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 total[kRows] = {};
  const int64_t first = group * matrix.group();
  for (int64_t at = first; at < first + matrix.group(); at += kPairs)
    for (int i = 0; i < kRows; ++i) total[i] = _mm512_dpbf16_ps(total[i], read<__m512bh>(x[i] + at), ones);
  for (int j = 0; j < kColumns; ++j) {
    const __m512 zero = matrix.zero(column + j, group);
    for (int i = 0; i < kRows; ++i) sums[i][j] = _mm512_fnmadd_ps(total[i], zero, sums[i][j]);
  }
}

// As of floats (product.h). A group is added up before its scale counts; where it is one vector, that needs no sums
// besides those of the tile.
template <int kRows, int kColumns, bool kAhead, typename Matrix>
void accumulate(InPairs, const Product& product, const Matrix& matrix, int64_t row, int64_t last, int64_t column,
                int64_t low, int64_t high, Floats (&total)[kRows][kColumns]) {
  const BFloat16* x[kRows];
  for (int i = 0; i < kRows; ++i)
    x[i] = static_cast<const BFloat16*>(product.x) + least(row + i, last - 1) * product.stride;
  __m512 sums[kRows][kColumns];
  std::memcpy(sums, total, sizeof sums);
  const auto each = [&](int64_t k, int64_t count, const auto& add) {  // add(row, column, a vector of either)
    if constexpr (kAhead)
      if (k % Matrix::kLine == 0)
        for (int j = 0; j < kColumns; ++j) matrix.prefetch(column + kColumns + j, k);
    __m512bh ws[kColumns];
    for (int j = 0; j < kColumns; ++j) ws[j] = matrix.load(column + j, k, count);
    for (int i = 0; i < kRows; ++i) {
      const __m512bh xs = Matrix::load_x(x[i] + k, count);
      for (int j = 0; j < kColumns; ++j) add(i, j, xs, ws[j]);
    }
  };
  const auto add = [](__m512(&to)[kRows][kColumns]) {
    return [&to](int i, int j, __m512bh xs, __m512bh ws) { to[i][j] = _mm512_dpbf16_ps(to[i][j], xs, ws); };
  };
  int64_t k = low;
  if constexpr (!Matrix::kIsScaled) {
    for (; k + kPairs <= high; k += kPairs) each(k, kPairs, add(sums));
    if (k < high) each(k, high - k, add(sums));
  } else {
    int64_t group = low / matrix.group();
    for (; k < high && matrix.group() == kPairs && !Matrix::kHasZeros; k += kPairs, ++group) {
      __m512 scale[kColumns];
      for (int j = 0; j < kColumns; ++j) scale[j] = matrix.scale(column + j, group);
      each(k, kPairs, [&](int i, int j, __m512bh xs, __m512bh ws) {
        sums[i][j] = _mm512_fmadd_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), xs, ws), scale[j], sums[i][j]);
      });
    }
    for (; k < high; ++group) {
      __m512 of_group[kRows][kColumns] = {};
      for (const int64_t stop = k + matrix.group(); k < stop; k += kPairs) each(k, kPairs, add(of_group));
      if constexpr (Matrix::kHasZeros) take_zeros(matrix, x, column, group, of_group);
      for (int j = 0; j < kColumns; ++j) {
        const __m512 scale = matrix.scale(column + j, group);
        for (int i = 0; i < kRows; ++i) sums[i][j] = _mm512_fmadd_ps(of_group[i][j], scale, sums[i][j]);
      }
    }
  }
  std::memcpy(total, sums, sizeof sums);
}

// Codes have zeros only where they are in groups.
template <template <bool, bool> class Codes>
void multiply_codes_by_pairs(const Product& product, int64_t first, int64_t last) {
  if (product.zeros) return blocks(product, Codes<true, true>(product), first, last);
  if (product.group < product.depth) return blocks(product, Codes<true, false>(product), first, last);
  blocks(product, Codes<false, false>(product), first, last);
}

}  // namespace

void multiply_bfloat16_pairs(const Product& product, int64_t first, int64_t last) {
  if (product.w_type == Type::kBFloat16) return blocks(product, ShortPairs(product), first, last);
  if (product.w_type == Type::kInt8) return multiply_codes_by_pairs<Int8Pairs>(product, first, last);
  multiply_codes_by_pairs<Int4Pairs>(product, first, last);
}

void multiply_codes_vnni(const Product& product, int64_t first, int64_t last) { multiply_codes(product, first, last); }

}  // namespace jaxinfer
