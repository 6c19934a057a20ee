// Vectors of float32 from what pages hold, by bits: exact whether or not the processor flushes subnormals to zero.
#ifndef JAXINFER_CPU_HELD_H_
#define JAXINFER_CPU_HELD_H_

#include "kernels.h"
#include "simd.h"

namespace jaxinfer {
namespace {

typedef uint8_t Octets __attribute__((vector_size(JAXINFER_VECTOR_BYTES / 4)));

inline Words choose(Ints where, Words yes, Words no) { return ((Words)where & yes) | (~(Words)where & no); }
inline Floats choose(Ints where, Floats yes, Floats no) { return (Floats)choose(where, (Words)yes, (Words)no); }

// A short float of kExponent bits of exponent and kMantissa of mantissa, in the lowest bits, but for what is not finite.
template <int kExponent, int kMantissa>
inline Floats widened_finite(Words bits) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  constexpr uint32_t kLeast = (127 + 1 - kBias - kMantissa) << 23;  // the least subnormal, a power of two
  float least;
  std::memcpy(&least, &kLeast, sizeof least);
  const Words magnitude = bits & kMagnitude, sign = (bits & ~kMagnitude) << (31 - kExponent - kMantissa);
  const Words normal = (magnitude << (23 - kMantissa)) + ((127u - kBias) << 23);
  const Words subnormal = (Words)(__builtin_convertvector((Ints)magnitude, Floats) * every(least));
  return (Floats)(choose(magnitude < (1u << kMantissa), subnormal, normal) | sign);
}

inline Floats widened_half(Words bits) {
  const Words finite = (Words)widened_finite<5, 10>(bits), exponent = bits & 0x7c00u;
  return (Floats)choose(exponent == 0x7c00u, finite | 0x7f800000u, finite);
}

// Each kind of page: kPer elements fill a word of 32 bits, and `widened` is given the bits of one in each lane.
struct Float32s {
  static constexpr int kPer = 1;
  static Floats widened(Words bits) { return (Floats)bits; }
};
struct BFloat16s {
  static constexpr int kPer = 2;
  static Floats widened(Words bits) { return (Floats)(bits << 16); }
};
struct Float16s {
  static constexpr int kPer = 2;
  static Floats widened(Words bits) { return widened_half(bits); }
};
struct E4M3s {
  static constexpr int kPer = 4;
  static Floats widened(Words bits) {
    const Words finite = (Words)widened_finite<4, 3>(bits);
    return (Floats)choose((bits & 0x7fu) == 0x7fu, finite | 0x7fc00000u, finite);
  }
};
struct E5M2s {
  static constexpr int kPer = 4;
  static Floats widened(Words bits) { return widened_half(bits << 8); }
};
struct Int8s {
  static constexpr int kPer = 4;
  static Floats widened(Words bits) { return __builtin_convertvector((Ints)(bits << 24) >> 24, Floats); }
};

template <typename Page>
constexpr int64_t kBytes = 4 / Page::kPer;

// The elements at place `part` of words.
template <typename Page>
inline Floats part_of(Words words, int part) {
  if constexpr (Page::kPer == 1) return Page::widened(words);
  constexpr int kBits = 32 / Page::kPer;
  return Page::widened((words >> (kBits * part)) & ((1u << (kBits % 32)) - 1));
}

// kWidth elements from `from` on.
template <typename Page>
inline Floats load_held(const char* from) {
  if constexpr (Page::kPer == 1) return Page::widened(read<Words>(from));
  else if constexpr (Page::kPer == 2) return Page::widened(__builtin_convertvector(read<Halves>(from), Words));
  else return Page::widened(__builtin_convertvector(read<Octets>(from), Words));
}

// The words of `bytes` bytes, fewer than a vector's; the others are 0.
inline Words words_of(const char* from, int64_t bytes) {
  char filled[sizeof(Words)];
  std::memset(filled, 0, sizeof filled);
  std::memcpy(filled, from, bytes);
  return read<Words>(filled);
}

// The same of `count` elements, fewer than kWidth; the other lanes are 0.
template <typename Page>
inline Floats load_held_some(const char* from, int64_t count) {
  char filled[kWidth * kBytes<Page>];
  std::memset(filled, 0, sizeof filled);
  std::memcpy(filled, from, count * kBytes<Page>);
  return load_held<Page>(filled);
}

}  // namespace
}  // namespace jaxinfer

#endif  // JAXINFER_CPU_HELD_H_
