// exp and tanh of vectors, and how a square of words is transposed.
#ifndef JAXINFER_CPU_FUNCTIONS_H_
#define JAXINFER_CPU_FUNCTIONS_H_

#include "held.h"
#include "simd.h"

namespace jaxinfer {
namespace {

// 0, 1, 2 and so on.
inline Floats places() {
  Floats found{};
  for (int64_t i = 0; i < kWidth; ++i) found[i] = i;
  return found;
}

inline Floats greater(Floats a, Floats b) { return choose(a > b, a, b); }

// exp of what is not above 0, to about one unit in the last place. 1 for 0; exactly 0 below -87, where the result would
// be about to become subnormal; NaN for NaN.
inline Floats exp_of(Floats x) {
  const Floats least = every(-87.0f), shifter = every(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const Ints tiny = x < least;
  const Floats near = choose(tiny, least, x);
  const Floats moved = near * every(1.44269504f) + shifter;
  const Floats power = moved - shifter;
  const Floats rest = (near - power * every(0.693359375f)) - power * every(-2.12194440e-4f);
  Floats sum = every(1.9875691500e-4f);
  sum = sum * rest + every(1.3981999507e-3f);
  sum = sum * rest + every(8.3334519073e-3f);
  sum = sum * rest + every(4.1665795894e-2f);
  sum = sum * rest + every(1.6666665459e-1f);
  sum = sum * rest + every(5.0000001201e-1f);
  sum = sum * (rest * rest) + rest + every(1.0f);
  const Floats scale = (Floats)(((Words)moved + 127u) << 23);  // 2 to the power
  return choose(tiny, Floats{}, sum * scale);
}

inline Floats tanh_of(Floats x) {
  const Words sign = (Words)x & 0x80000000u;
  const Floats size = (Floats)((Words)x & 0x7fffffffu), square = x * x;
  Floats sum = every(-5.70498872745e-3f);
  sum = sum * square + every(2.06390887954e-2f);
  sum = sum * square + every(-5.37397155531e-2f);
  sum = sum * square + every(1.33314422036e-1f);
  sum = sum * square + every(-3.33332819422e-1f);
  const Floats small = sum * square * x + x;
  const Floats power = exp_of(size * every(-2.0f));
  const Floats large = (every(1.0f) - power) / (every(1.0f) + power);
  return choose(size < every(0.625f), small, (Floats)((Words)large | sign));
}

// The lower, or upper, halves of two vectors, lane by lane.
inline Words low(Words a, Words b) {
#if JAXINFER_VECTOR_BYTES == 64
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif JAXINFER_VECTOR_BYTES == 32
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
inline Words high(Words a, Words b) {
#if JAXINFER_VECTOR_BYTES == 64
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif JAXINFER_VECTOR_BYTES == 32
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Each step turns the bits of a word's place, those of its vector and then of its lane, by one.
inline void transpose(Words (&square)[kWidth]) {
#pragma GCC unroll 4
  for (int step = 1; step < kWidth; step *= 2) {
    Words turned[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      turned[2 * i] = low(square[i], square[i + kWidth / 2]);
      turned[2 * i + 1] = high(square[i], square[i + kWidth / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) square[i] = turned[i];
  }
}

}  // namespace
}  // namespace jaxinfer

#endif  // JAXINFER_CPU_FUNCTIONS_H_
