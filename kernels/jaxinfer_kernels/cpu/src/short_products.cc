// Products of short types by instructions that processors with AVX-512 may have besides: AVX512_BF16 and VNNI.
#include "kernels.h"
#include "product.h"

namespace jaxinfer {
namespace {

// Pairs of bfloat16 are multiplied, and added to one lane of float32.
struct Pairs {
  static constexpr bool kIsDecoded = false;
  explicit Pairs(const Product&) {}
  float finish(int64_t, float total) const { return total; }
};

inline __m512bh pairs(const BFloat16* from, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
}

template <int kRows, int kColumns, bool kAhead>
void accumulate(const Product& product, const Pairs&, int64_t row, int64_t last, int64_t column, int64_t low,
                int64_t high, Floats (&total)[kRows][kColumns]) {
  const BFloat16* x[kRows];
  for (int i = 0; i < kRows; ++i)
    x[i] = static_cast<const BFloat16*>(product.x) + least(row + i, last - 1) * product.stride;
  const BFloat16* w = static_cast<const BFloat16*>(product.w) + column * product.depth;
  __m512 sums[kRows][kColumns];
  std::memcpy(sums, total, sizeof sums);
  int64_t k = low;
  for (; k + 32 <= high; k += 32) {
    if (kAhead)
      for (int j = 0; j < kColumns; ++j) __builtin_prefetch(w + (kColumns + j) * product.depth + k, 0, 2);
    __m512bh ws[kColumns];
    for (int j = 0; j < kColumns; ++j) ws[j] = read<__m512bh>(w + j * product.depth + k);
    for (int i = 0; i < kRows; ++i) {
      const __m512bh xs = read<__m512bh>(x[i] + k);
      for (int j = 0; j < kColumns; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], xs, ws[j]);
    }
  }
  for (int j = 0; k < high && j < kColumns; ++j) {
    const __m512bh ws = pairs(w + j * product.depth + k, high - k);
    for (int i = 0; i < kRows; ++i)
      sums[i][j] = _mm512_dpbf16_ps(sums[i][j], pairs(x[i] + k, high - k), ws);
  }
  std::memcpy(total, sums, sizeof sums);
}

}  // namespace

void multiply_bfloat16_pairs(const Product& product, int64_t first, int64_t last) {
  blocks(product, Pairs(product), first, last);
}

void multiply_codes_vnni(const Product& product, int64_t first, int64_t last) { multiply_codes(product, first, last); }

}  // namespace jaxinfer
