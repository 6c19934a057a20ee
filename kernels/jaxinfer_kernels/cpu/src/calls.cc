// What XLA calls: arguments are checked and cut into pieces, which kernels then compute on the pool's threads.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "tasks.h"
#include "xla/ffi/api/ffi.h"

namespace jaxinfer {

#define JAXINFER_DECLARE(name) extern const Kernels kernels_##name;
#if defined(__x86_64__)
JAXINFER_DECLARE(avx512)
JAXINFER_DECLARE(avx2)
// short_products.cc
void multiply_bfloat16_pairs(const Product& product, int64_t first, int64_t last);
void multiply_codes_vnni(const Product& product, int64_t first, int64_t last);
#endif
JAXINFER_DECLARE(plain)

namespace {

Kernels widest() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
    Kernels found = kernels_avx512;
    found.name = "avx512_bf16";
    found.multiply_codes = multiply_codes_vnni;
    found.multiply_bfloat16 = multiply_bfloat16_pairs;
    return found;
  }
  if (avx512) return kernels_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2;
#endif
  return kernels_plain;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels found = widest();
  return found;
}

namespace {

namespace ffi = xla::ffi;

ffi::Error wrong(const std::string& what) { return ffi::Error::InvalidArgument("jaxinfer: " + what); }

bool is_known(ffi::DataType type) {
  return type == ffi::F32 || type == ffi::BF16 || type == ffi::S8 || type == ffi::U8;
}

Type type_of(ffi::DataType type) {
  if (type == ffi::F32) return Type::kFloat32;
  if (type == ffi::BF16) return Type::kBFloat16;
  return type == ffi::S8 ? Type::kInt8 : Type::kInt4;
}

int64_t bytes_of(Type type, int64_t values) {
  if (type == Type::kInt4) return values / 2;
  return values * (type == Type::kFloat32 ? 4 : type == Type::kBFloat16 ? 2 : 1);
}

// How a kernel takes rows of x. The last two are of bfloat16, and copied.
enum class Way { kAsTheyAre, kAsFloats, kHalvesInTurn };

Way way_of(Type x, Type w, int64_t depth, int64_t group, bool zeros) {
  if (x != Type::kBFloat16) return Way::kAsTheyAre;
  if (kernels().multiply_bfloat16) {
    if (w == Type::kBFloat16) return Way::kAsTheyAre;
    if (w != Type::kFloat32 && (group == depth ? !zeros : group % kInt4Block == 0 && group <= kMostPaired))
      return Way::kHalvesInTurn;
  }
  return Way::kAsFloats;
}

void widen(const uint16_t* from, int64_t depth, float* to) {
  for (int64_t k = 0; k < depth; ++k) {
    const uint32_t bits = static_cast<uint32_t>(from[k]) << 16;
    std::memcpy(to + k, &bits, sizeof bits);
  }
}

void take_in_turn(const uint16_t* from, int64_t depth, uint16_t* to) {
  constexpr int64_t kHalf = kInt4Block / 2;
  int64_t k = 0;
  for (; k + kInt4Block <= depth; k += kInt4Block)
    for (int64_t i = 0; i < kHalf; ++i) to[k + 2 * i] = from[k + i], to[k + 2 * i + 1] = from[k + kHalf + i];
  for (int64_t i = 0; k + i < depth; ++i) to[k + (i < kHalf ? 2 * i : 2 * (i - kHalf) + 1)] = from[k + i];
}

// Rows of x of bfloat16 in another way, each filled up with 0 to `stride` values.
template <typename To, typename Copy>
std::vector<To> copied(ffi::ThreadPool pool, const void* x, int64_t rows, int64_t depth, int64_t stride, Copy copy) {
  constexpr int64_t kRows = 64;  // some microseconds of work
  std::vector<To> found(rows * stride);
  share(pool, (rows + kRows - 1) / kRows, [&](int64_t part) {
    for (int64_t row = part * kRows; row < std::min((part + 1) * kRows, rows); ++row)
      copy(static_cast<const uint16_t*>(x) + row * depth, depth, &found[row * stride]);
  });
  return found;
}

// How many rows of x there are before those at the end of which all values are 0: padding, whose product is 0.
int64_t rows_in_use(const void* x, int64_t rows, int64_t bytes) {
  const char* from = static_cast<const char*>(x);
  const auto is_zero = [&](int64_t row) {
    const char* at = from + row * bytes;
    return !*at && !std::memcmp(at, at + 1, bytes - 1);
  };
  while (rows && is_zero(rows - 1)) --rows;
  return rows;
}

struct Piece {
  int64_t matrix;        // its number among those of the layer
  int64_t begin, end;    // rows of x
  int64_t first, last;   // rows of the matrix
};

// Pieces of products of rows of x, sorted by matrix, `sizes` for each: of about as many values of a matrix each as keep
// a thread busy for some microseconds.
std::vector<Piece> pieces_of(const int32_t* sizes, int64_t matrices, int64_t total, int64_t rows, int64_t depth) {
  constexpr int64_t kValues = 1 << 16, kColumns = 24;  // whole tiles, of whatever width
  const int64_t span = std::max<int64_t>(kValues / depth / kColumns, 1) * kColumns;
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    const int64_t end = std::min(begin + std::max(sizes[matrix], 0), total);
    for (int64_t first = 0; begin < end && first < rows; first += span)
      pieces.push_back({matrix, begin, end, first, std::min(first + span, rows)});
    begin = end;
  }
  return pieces;
}

// What a product's arrays are: x [T, K], of `matrices` matrices [N, K] in each of a number of layers.
struct Sizes {
  int64_t count, depth, rows, matrices, layers, groups;  // T, K, N; groups: of the values of a row
};

// As `product` has them. Whether they fit each other is what the message tells, which is empty if they do.
std::string find_sizes(const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, int64_t matrices, int64_t scales,
                       int64_t zeros, const ffi::AnyBuffer& out, Sizes* found) {
  const auto xs = x.dimensions(), outs = out.dimensions();
  if (!is_known(x.element_type()) || x.element_type() == ffi::U8 || !is_known(w.element_type()) ||
      (out.element_type() != ffi::F32 && out.element_type() != ffi::BF16))
    return "a product has a type that is not known";
  const Type w_type = type_of(w.element_type());
  if (xs.size() != 2 || outs.size() != 2 || outs[0] != xs[0] || !xs[1] || !outs[1] || !matrices ||
      (w_type == Type::kInt4 && xs[1] % kInt4Block))
    return "shapes of a product do not fit each other";
  *found = {xs[0], xs[1], outs[1], matrices, 0, 1};
  const int64_t held = w.size_bytes(), of_layer = bytes_of(w_type, matrices * found->rows * found->depth);
  found->layers = held / of_layer;
  if (held % of_layer) return "shapes of a product do not fit each other";
  if (!found->layers) return "a product has no matrix";
  const int64_t all_rows = found->layers * matrices * found->rows;
  if ((w_type == Type::kInt8 || w_type == Type::kInt4) != (scales > 0)) return "codes have scales, and no other values";
  if (scales) found->groups = scales / all_rows;
  if (scales % all_rows || !found->groups) return "scales of a product do not fit its matrices";
  if (zeros && zeros != scales) return "zeros of a product do not fit its scales";
  const int64_t least = w_type == Type::kInt4 ? kInt4Block : kLanes;
  if (found->depth % found->groups || (found->groups > 1 && found->depth / found->groups % least))
    return "groups must be multiples of " + std::to_string(least);
  return "";
}

// x: [T, K], rows sorted by matrix. w: matrices [N, K] in any number of axes, E of them for each layer, of which layer
// `layer` is used. sizes: [E], rows of x for each matrix; rows beyond their sum give 0. scales, zeros: of float32, a row
// of them for each row of each matrix, or none. out: [T, N].
ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::Buffer<ffi::S32> layer,
                   ffi::Buffer<ffi::S32> sizes, ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::F32> zeros,
                   ffi::Result<ffi::AnyBuffer> out) {
  Sizes of;
  const std::string what =
      find_sizes(x, w, sizes.element_count(), scales.element_count(), zeros.element_count(), *out, &of);
  if (!what.empty()) return wrong(what);
  const int64_t count = of.count, depth = of.depth, rows = of.rows, groups = of.groups;
  const int64_t at = *layer.typed_data();
  if (at < 0 || at >= of.layers) return wrong("there is no layer " + std::to_string(at));

  Type x_type = type_of(x.element_type());
  const Type w_type = type_of(w.element_type()), out_type = type_of(out->element_type());
  const int64_t total = rows_in_use(x.untyped_data(), count, bytes_of(x_type, depth));
  const void* data = x.untyped_data();
  if (x_type == Type::kInt8 && w_type != Type::kInt8) return wrong("codes are multiplied with codes alone");
  int64_t stride = depth;
  std::vector<float> wide;
  std::vector<uint16_t> in_turn;
  const Way way = way_of(x_type, w_type, depth, depth / groups, zeros.element_count());
  if (way != Way::kAsTheyAre) stride = (depth + kInt4Block - 1) / kInt4Block * kInt4Block;
  if (way == Way::kAsFloats) {
    wide = copied<float>(pool, data, total, depth, stride, widen);
    data = wide.data(), x_type = Type::kFloat32;
  } else if (way == Way::kHalvesInTurn) {
    in_turn = copied<uint16_t>(pool, data, total, depth, stride, take_in_turn);
    data = in_turn.data();
  }

  const auto multiply = x_type == Type::kFloat32 ? kernels().multiply
                        : x_type == Type::kInt8  ? kernels().multiply_codes
                                                 : kernels().multiply_bfloat16;
  const auto pieces = pieces_of(sizes.typed_data(), of.matrices, total, rows, depth);
  const int64_t used = pieces.empty() ? 0 : pieces.back().end;
  std::memset(static_cast<char*>(out->untyped_data()) + bytes_of(out_type, used * rows), 0,
              bytes_of(out_type, (count - used) * rows));
  const auto run = [&](int64_t number) {
    const Piece& piece = pieces[number];
    const int64_t matrix = at * of.matrices + piece.matrix;
    Product product;
    product.x = data, product.x_type = x_type, product.stride = stride;
    product.begin = piece.begin, product.end = piece.end;
    product.w = static_cast<const char*>(w.untyped_data()) + bytes_of(w_type, matrix * rows * depth);
    product.w_type = w_type, product.rows = rows, product.depth = depth, product.group = depth / groups;
    product.scales = scales.element_count() ? scales.typed_data() + matrix * rows * groups : nullptr;
    product.zeros = zeros.element_count() ? zeros.typed_data() + matrix * rows * groups : nullptr;
    product.out = out->untyped_data(), product.out_type = out_type;
    multiply(product, piece.first, piece.last);
  };
  share(pool, pieces.size(), run);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxinfer

#define JAXINFER_EXPORT extern "C" __attribute__((visibility("default")))

JAXINFER_EXPORT XLA_FFI_Error* jaxinfer_product(XLA_FFI_CallFrame* frame) {
  static auto* handler = xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::ThreadPool>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Ret<xla::ffi::AnyBuffer>()
                             .To(jaxinfer::product)
                             .release();
  return handler->Call(frame);
}

// Gives an array as its memory is found: to a large one the system has given no pages yet.
JAXINFER_EXPORT XLA_FFI_Error* jaxinfer_untouched(XLA_FFI_CallFrame* frame) {
  static auto* handler = xla::ffi::Ffi::Bind()
                             .Ret<xla::ffi::AnyBuffer>()
                             .To([](xla::ffi::Result<xla::ffi::AnyBuffer>) { return xla::ffi::Error::Success(); })
                             .release();
  return handler->Call(frame);
}

// The name of the set of instructions that kernels use here.
JAXINFER_EXPORT const char* jaxinfer_instructions() { return jaxinfer::kernels().name; }
