// Vectors of one width, and how values of each type become vectors of float32. Included by files that are compiled once
// for each set of instructions: all is in an unnamed namespace, and nothing of the C++ library is used, whose inline
// functions the linker would take from whichever file it likes.
#ifndef JAXINFER_CPU_SIMD_H_
#define JAXINFER_CPU_SIMD_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define JAXINFER_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define JAXINFER_VECTOR_BYTES 32
#else
#define JAXINFER_VECTOR_BYTES 16
#endif

namespace jaxinfer {
namespace {

constexpr int64_t kWidth = JAXINFER_VECTOR_BYTES / 4;  // lanes of a vector
constexpr int64_t kLineBytes = 64;                     // of the cache

typedef float Floats __attribute__((vector_size(JAXINFER_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(JAXINFER_VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(JAXINFER_VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(JAXINFER_VECTOR_BYTES / 2)));
typedef int8_t Bytes __attribute__((vector_size(JAXINFER_VECTOR_BYTES / 4)));
typedef uint8_t UnsignedBytes __attribute__((vector_size(JAXINFER_VECTOR_BYTES / 4)));

struct BFloat16 {
  uint16_t bits;
};

inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

inline Floats every(float value) { return Floats{} + value; }

template <typename Vector>
inline Vector read(const void* from) {
  Vector found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

// kWidth values from `from` on, as float32.
inline Floats load(const float* from) { return read<Floats>(from); }

#if defined(__AVX512F__)
// With a mask, as headers of GCC 12 leave a variable uninitialised without one, and it warns of that.
inline Ints widened(const uint16_t* from) { return (Ints)_mm512_maskz_cvtepu16_epi32(0xffff, read<__m256i>(from)); }
inline Ints widened(const int8_t* from) { return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, read<__m128i>(from)); }
inline Ints widened(const uint8_t* from) { return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, read<__m128i>(from)); }
#elif defined(__AVX2__)
inline Ints widened(const uint16_t* from) { return (Ints)_mm256_cvtepu16_epi32(read<__m128i>(from)); }
inline Ints widened(const int8_t* from) { return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
inline Ints widened(const uint8_t* from) { return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
#else
inline Ints widened(const uint16_t* from) { return __builtin_convertvector(read<Halves>(from), Ints); }
inline Ints widened(const int8_t* from) { return __builtin_convertvector(read<Bytes>(from), Ints); }
inline Ints widened(const uint8_t* from) { return __builtin_convertvector(read<UnsignedBytes>(from), Ints); }
#endif

inline Floats load(const BFloat16* from) { return (Floats)(widened(&from->bits) << 16); }
inline Floats load(const int8_t* from) { return __builtin_convertvector(widened(from), Floats); }

// The same of `count` values, fewer than kWidth; the other lanes are 0.
template <typename T>
inline Floats load_some(const T* from, int64_t count) {
  T values[kWidth];
  std::memset(values, 0, sizeof values);
  std::memcpy(values, from, count * sizeof(T));
  return load(values);
}

// The value of codes: (code - zero) * scale.
template <bool kZeros>
inline Floats value(Floats codes, Floats scale, Floats zero) {
  return (kZeros ? codes - zero : codes) * scale;
}

// Values of codes of four bits, each the low ones of a lane, with one scale and zero.
struct Int4Values {
#if defined(__AVX512F__)
  template <bool kZeros>
  static Int4Values of(float scale, float zero) {
    const Floats codes = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    return {value<kZeros>(codes, every(scale), every(zero))};
  }

  template <bool kZeros>
  Floats values(Ints codes) const {  // four bits of an index count
    return (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)codes, (__m512)table);
  }

  Floats table;  // the value of each code
#else
  template <bool kZeros>
  static Int4Values of(float scale, float zero) {
    return {every(scale), every(zero)};
  }

  template <bool kZeros>
  Floats values(Ints codes) const {
    return value<kZeros>(__builtin_convertvector(((codes & 15) ^ 8) - 8, Floats), scale, zero);
  }

  Floats scale, zero;
#endif
};

// The sum of all lanes, by halves.
inline float sum(Floats vector) {
  float lanes[kWidth];
  std::memcpy(lanes, &vector, sizeof lanes);
  for (int64_t half = kWidth / 2; half; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

#if defined(__AVX512F__)
// Halves of two vectors are added: [a0 + a2, a1 + a3, b0 + b2, b1 + b3], by 16 bytes.
inline __m512 add_halves(__m512 a, __m512 b) {
  return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
}

// The sums of four vectors, each as `sum` gives it.
inline void sum_four(const Floats (&vectors)[4], float (&to)[4]) {
  const __m512 ab = add_halves((__m512)vectors[0], (__m512)vectors[1]);
  const __m512 cd = add_halves((__m512)vectors[2], (__m512)vectors[3]);
  __m512 all = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
  all = all + _mm512_maskz_permute_ps(0xffff, all, 0x4e);
  all = all + _mm512_maskz_permute_ps(0xffff, all, 0xb1);
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const Floats found = (Floats)_mm512_maskz_permutexvar_ps(0xffff, firsts, all);
  std::memcpy(to, &found, sizeof to);
}
#endif

// The sum of each vector.
template <int kCount>
inline void sum_each(const Floats (&vectors)[kCount], float (&to)[kCount]) {
#if defined(__AVX512F__)
  for (int i = 0; i < kCount && kCount > 2; i += 4) {
    Floats four[4] = {};
    float found[4];
    const int count = kCount - i < 4 ? kCount - i : 4;
    for (int j = 0; j < count; ++j) four[j] = vectors[i + j];
    sum_four(four, found);
    for (int j = 0; j < count; ++j) to[i + j] = found[j];
  }
  if (kCount > 2) return;
#endif
  for (int i = 0; i < kCount; ++i) to[i] = sum(vectors[i]);
}

// To the nearest bfloat16, of two the even one; NaN stays NaN.
inline BFloat16 rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace
}  // namespace jaxinfer

#endif  // JAXINFER_CPU_SIMD_H_
