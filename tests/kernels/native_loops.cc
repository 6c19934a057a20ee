// Compares the kernels of one set of instructions with plain loops: for processors that this machine is not.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace jaxinfer {
extern const Kernels kernels_plain;
}

namespace {

using namespace jaxinfer;

uint32_t state = 1;
float draw() { return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1; }

float widened(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

int wrong = 0;
void compare(const char* what, double got, double want, double most) {
  if (!(std::fabs(got - want) <= most) && ++wrong < 10) std::printf("%s: %g, not %g\n", what, got, want);
}

// x of float32, [rows, depth], times a matrix of each type, with scales of each group of values of a row.
void products(int64_t rows, int64_t columns, int64_t depth, int64_t group) {
  const int64_t stride = (depth + kLanes - 1) / kLanes * kLanes, groups = depth / group;
  std::vector<float> x(rows * stride), floats(columns * depth), scales(columns * groups), zeros(columns * groups);
  std::vector<uint16_t> halves(columns * depth);
  std::vector<int8_t> codes(columns * depth), x_codes(rows * depth);
  std::vector<uint8_t> packed(columns * depth / 2);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t k = 0; k < depth; ++k) x[t * stride + k] = draw();
  for (auto& value : floats) value = draw();
  for (auto& value : halves) value = 0x3f80 + static_cast<uint16_t>(draw() * 100);
  for (auto& value : codes) value = static_cast<int8_t>(draw() * 127);
  for (auto& value : x_codes) value = static_cast<int8_t>(draw() * 127);
  for (auto& value : packed) value = static_cast<uint8_t>(draw() * 127);
  for (auto& value : scales) value = draw();
  for (auto& value : zeros) value = static_cast<float>(static_cast<int>(draw() * 8));
  std::vector<float> out(rows * columns), alone(rows * columns);
  const auto run = [&](const char* what, Type type, const void* w, const float* scale, const float* zero, auto value) {
    const Product product{x.data(), Type::kFloat32, stride, 0, rows, w, type, columns, depth, scale, zero,
                          scale ? group : depth, out.data(), Type::kFloat32};
    kernels_plain.multiply(product, 0, columns);
    for (int64_t t = 0; t < rows; ++t) {
      Product row = product;
      row.begin = t, row.end = t + 1, row.out = alone.data();
      kernels_plain.multiply(row, 0, columns);
    }
    for (int64_t i = 0; i < rows * columns; ++i) compare("a row by itself", out[i], alone[i], 0);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t n = 0; n < columns; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += static_cast<double>(x[t * stride + k]) * value(n, k);
        compare(what, out[t * columns + n], sum, 2e-5 * depth);
      }
  };
  run("float32", Type::kFloat32, floats.data(), nullptr, nullptr, [&](int64_t n, int64_t k) { return floats[n * depth + k]; });
  run("bfloat16", Type::kBFloat16, halves.data(), nullptr, nullptr,
      [&](int64_t n, int64_t k) { return widened(halves[n * depth + k]); });
  const auto code = [&](int64_t n, int64_t k) { return codes[n * depth + k] * scales[n * groups + k / group]; };
  run("int8", Type::kInt8, codes.data(), scales.data(), nullptr, code);
  run("int8 with zeros", Type::kInt8, codes.data(), scales.data(), zeros.data(), [&](int64_t n, int64_t k) {
    const int64_t at = n * groups + k / group;
    return (codes[n * depth + k] - zeros[at]) * scales[at];
  });
  if (group % kInt4Block == 0) {
    const auto four = [&](int64_t n, int64_t k) {
      const uint8_t byte = packed[(n * depth + k / 32 * 32) / 2 + k % 16];
      const int found = k % 32 < 16 ? byte % 16 : byte / 16;
      return found < 8 ? found : found - 16;
    };
    run("int4", Type::kInt4, packed.data(), scales.data(), nullptr,
        [&](int64_t n, int64_t k) { return four(n, k) * scales[n * groups + k / group]; });
    run("int4 with zeros", Type::kInt4, packed.data(), scales.data(), zeros.data(), [&](int64_t n, int64_t k) {
      const int64_t at = n * groups + k / group;
      return (four(n, k) - zeros[at]) * scales[at];
    });
  }
  if (groups > 1) return;
  const Product product{x_codes.data(), Type::kInt8, depth, 0, rows, codes.data(), Type::kInt8, columns, depth,
                        scales.data(), nullptr, depth, out.data(), Type::kFloat32};
  kernels_plain.multiply_codes(product, 0, columns);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t n = 0; n < columns; ++n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += x_codes[t * depth + k] * codes[n * depth + k];
      compare("codes", out[t * columns + n], static_cast<float>(sum) * scales[n], 0);
    }
}

// Tokens of one row, all of whose keys and values are in pages of float32, attend to those before them.
void attention(int64_t tokens, int64_t heads, int64_t group, int64_t dim) {
  constexpr int64_t kPage = 16;
  const int64_t pages = (tokens + kPage - 1) / kPage;
  std::vector<float> q(tokens * heads * group * dim), out(q.size()), held(2 * pages * kPage * heads * dim);
  for (auto& value : q) value = draw();
  for (auto& value : held) value = draw();
  std::vector<int32_t> table(pages);
  for (int64_t i = 0; i < pages; ++i) table[i] = static_cast<int32_t>(pages - 1 - i);
  const float* keys = held.data();
  const float* values = keys + pages * kPage * heads * dim;
  const Attention whole{q.data(), Type::kFloat32, out.data(), reinterpret_cast<const char*>(keys),
                        reinterpret_cast<const char*>(values), Held::kFloat32, pages, kPage, kPage * heads * dim,
                        heads * dim, dim, heads * group, heads, dim, dim, 0.3f, 1, 0, 0, nullptr};
  std::vector<float> scratch(kernels_plain.attention_scratch(whole));
  const int64_t most = kernels_plain.most_queries(whole);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t first = 0; first < tokens * group; first += most) {
      const int64_t last = first + most < tokens * group ? first + most : tokens * group;
      kernels_plain.attend(whole, Queries{table.data(), pages, 0, 0, head, 1, first, last}, scratch.data());
    }
  const auto place = [&](int64_t token, int64_t head) {
    return ((table[token / kPage] * kPage + token % kPage) * heads + head) * dim;
  };
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads * group; ++h) {
      const float* query = &q[(t * heads * group + h) * dim];
      std::vector<double> sums(dim);
      double total = 0;
      for (int64_t s = 0; s <= t; ++s) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(query[d]) * keys[place(s, h / group) + d];
        const double weight = std::exp(0.3 * score);
        total += weight;
        for (int64_t d = 0; d < dim; ++d) sums[d] += weight * values[place(s, h / group) + d];
      }
      for (int64_t d = 0; d < dim; ++d)
        compare("attention", out[(t * heads * group + h) * dim + d], sums[d] / total, 1e-5);
    }
}

}  // namespace

int main() {
  for (int64_t rows : {1, 2, 7, 47}) {
    products(rows, 33, 100, 100);
    products(rows, 9, 64, 16);
    products(rows, 1, 3, 3);
    products(rows, 10, 96, 32);
    products(rows, 3, 64, 64);
    products(rows, 5, 1440, 96);
  }
  attention(1, 1, 1, 8);
  attention(70, 2, 3, 40);
  attention(130, 1, 1, 64);
  std::printf("%s: %d wrong\n", kernels_plain.name, wrong);
  return wrong != 0;
}
