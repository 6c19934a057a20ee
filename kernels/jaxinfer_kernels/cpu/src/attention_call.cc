// Attention as XLA calls it: new K and V go into the pages, then the queries are cut into items for the threads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "tasks.h"
#include "xla/ffi/api/ffi.h"

namespace jaxinfer {
namespace {

namespace ffi = xla::ffi;

using Integers = ffi::Buffer<ffi::S32>;

ffi::Error wrong(const std::string& what) { return ffi::Error::InvalidArgument("jaxinfer: attention: " + what); }

// The bytes of what is held as `held`, 0 if there is no such type.
int64_t bytes_of(int32_t held) {
  constexpr int64_t kSizes[] = {4, 2, 2, 1, 1, 1};
  return held < 0 || held >= 6 ? 0 : kSizes[held];
}

// Pages of [L, 2, N, page, Hkv, D], or [L, N, page, W]: sizes in elements.
struct Pages {
  explicit Pages(ffi::AnyBuffer::Dimensions shape) : latent(shape.size() == 4) {
    layers = shape[0], count = shape[latent ? 1 : 2], size = shape[latent ? 2 : 3], heads = latent ? 1 : shape[4];
    width = shape[latent ? 3 : 5];
    token = heads * width, page = size * token, side = latent ? 0 : count * page, layer = (latent ? 1 : 2) * count * page;
  }
  bool latent;
  int64_t layers, count, size, heads, width;
  int64_t token, page, side, layer;
};

// A row's tokens within [0, T), and its entries of the page table.
struct Row {
  const int32_t* table;
  int64_t entries, start, offset, count;
};

std::vector<Row> rows_of(const Integers& table, const Integers& start, const Integers& offset, const Integers& count,
                         int64_t tokens) {
  std::vector<Row> rows;
  const int64_t entries = table.dimensions()[1];
  for (int64_t i = 0; i < table.dimensions()[0]; ++i) {
    const Row row{table.typed_data() + i * entries, entries, start.typed_data()[i], offset.typed_data()[i],
                  std::min<int64_t>(count.typed_data()[i], tokens - offset.typed_data()[i])};
    if (row.count > 0 && row.start >= 0 && row.offset >= 0) rows.push_back(row);
  }
  return rows;
}

// Copies each head's `size` bytes of new to the places of its token in a layer; the rest of `width` becomes 0.
struct Write {
  const char* from;
  char* to;  // the layer's
  int64_t heads, size, width;
};

void write_row(const Row& row, const Pages& pages, int64_t bytes, const Write& write) {
  for (int64_t i = 0; i < row.count; ++i) {
    const int64_t entry = (row.start + i) / pages.size;
    const int64_t page = entry < row.entries ? row.table[entry] : -1;
    if (page < 0 || page >= pages.count) continue;
    char* to = write.to + (page * pages.page + (row.start + i) % pages.size * pages.token) * bytes;
    const char* from = write.from + (row.offset + i) * write.heads * write.size;
    for (int64_t head = 0; head < write.heads; ++head, to += pages.width * bytes, from += write.size) {
      std::memcpy(to, from, write.size);
      std::memset(to + write.size, 0, write.width - write.size);
    }
  }
}

struct Item {
  Queries queries;
  int64_t cost;
};

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Items of at most `most` queries, the costliest first. Several heads of a token lie side by side, and are best read so;
// but fewer of them, and then of their queries, are in an item as long as there would not be enough items.
std::vector<Item> items_of(const std::vector<Row>& rows, const Attention& attention, int64_t most, int64_t threads) {
  constexpr int64_t kLeast = 6;
  const int64_t group = attention.query_heads / attention.kv_heads;
  int64_t longest = 0, heads = attention.kv_heads;
  for (const Row& row : rows) longest = std::max(longest, row.count * group);
  const auto total = [&] {
    int64_t found = 0;
    for (const Row& row : rows)
      found += pieces(row.count * group, most) * pieces(attention.kv_heads, heads);
    return found;
  };
  while (heads > 1 && (heads * std::min(longest, most) > most || total() < 2 * threads)) heads = pieces(heads, 2);
  while (most > kLeast && total() < 2 * threads) most = std::max(most / 2, kLeast);
  std::vector<Item> items;
  for (const Row& row : rows)
    for (int64_t first = 0; first < row.count * group; first += most)
      for (int64_t head = 0; head < attention.kv_heads; head += heads) {
        const int64_t last = std::min(first + most, row.count * group), end = row.start + (last - 1) / group + 1;
        const int64_t keys = attention.window ? std::min(end, attention.window + most / group) : end;
        const int64_t some = std::min(heads, attention.kv_heads - head);
        items.push_back({{row.table, row.entries, row.start, row.offset, head, some, first, last},
                         keys * (last - first + 8) * some});
      }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
  return items;
}

void zero_others(const std::vector<Row>& rows, int64_t tokens, int64_t bytes, char* out) {
  std::vector<bool> real(tokens);
  for (const Row& row : rows) std::fill_n(real.begin() + row.offset, row.count, true);
  for (int64_t i = 0; i < tokens; ++i)
    if (!real[i]) std::memset(out + i * bytes, 0, bytes);
}

// Memory that a thread works on, kept for its next item. As large as asked for, at a multiple of a vector's bytes.
float* scratch_of(int64_t size) {
  constexpr int64_t kAlign = 64;
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kKept = false;  // so that all that is written beyond it is seen
#else
  constexpr bool kKept = true;
#endif
  thread_local std::unique_ptr<char[]> memory;
  thread_local int64_t held = 0;
  const int64_t wanted = size * sizeof(float) + kAlign;
  if (wanted > held || !kKept) memory.reset(new char[wanted]), held = wanted;
  void* at = memory.get();
  size_t space = wanted;
  return static_cast<float*>(std::align(kAlign, size * sizeof(float), at, space));
}

// q: [T, Hq, Dk] float32 or bfloat16. k: [T, Hkv, Dk] and v: [T, Hkv, Dv], of the pages' type; v is [0] for latent
// pages, whose values are the beginnings of their keys. pages: [L, 2, N, page, Hkv, D], or latent, [L, N, page, W]; the
// result has the same memory. layer: []. table: [R, P]; start, offset, count: [R]. sinks: [Hq] or [0]. scales: those
// of keys and values, [2]. Attributes: the type that pages hold, and how scores are computed; 0 for no window or cap.
ffi::Error attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer held,
                     Integers layer, Integers table, Integers start, Integers offset, Integers count,
                     ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::F32> scales, ffi::Result<ffi::AnyBuffer> out,
                     ffi::Result<ffi::AnyBuffer> written, int32_t held_type, float scale, int64_t window,
                     float soft_cap) {
  const auto qs = q.dimensions(), ks = k.dimensions(), vs = v.dimensions(), outs = out->dimensions();
  const auto shape = held.dimensions(), tables = table.dimensions();
  if (qs.size() != 3 || ks.size() != 3 || outs.size() != 3 || (shape.size() != 4 && shape.size() != 6) ||
      tables.size() != 2)
    return wrong("arguments have other axes");
  const Pages pages(shape);
  const int64_t tokens = qs[0], key_dim = qs[2], value_dim = outs[2], bytes = bytes_of(held_type);
  if (ks[0] != tokens || ks[1] != pages.heads || ks[2] != key_dim || key_dim > pages.width || !pages.heads ||
      qs[1] % pages.heads || outs[0] != tokens || outs[1] != qs[1] || value_dim > pages.width)
    return wrong("shapes do not fit each other");
  if (pages.latent ? value_dim > key_dim : vs.size() != 3 || vs[0] != tokens || vs[1] != pages.heads || vs[2] != value_dim)
    return wrong("values do not fit the keys");
  if (!pages.latent && shape[1] != 2) return wrong("pages must have two sides");
  for (const Integers* one : {&start, &offset, &count})
    if (static_cast<int64_t>(one->element_count()) != tables[0]) return wrong("rows do not fit the page table");
  if (layer.element_count() != 1 || scales.element_count() != 2 ||
      (sinks.element_count() && static_cast<int64_t>(sinks.element_count()) != qs[1]))
    return wrong("the layer, sinks or scales have other shapes");
  if (!bytes || static_cast<int64_t>(ffi::ByteWidth(held.element_type())) != bytes || k.element_type() != held.element_type() ||
      (!pages.latent && v.element_type() != held.element_type()))
    return wrong("keys, values and pages have types that do not fit each other");
  if ((q.element_type() != ffi::F32 && q.element_type() != ffi::BF16) || out->element_type() != q.element_type())
    return wrong("queries must be float32 or bfloat16, and so the result");
  if (written->untyped_data() != held.untyped_data()) return wrong("pages must be written in place");
  const int64_t at = *layer.typed_data();
  if (at < 0 || at >= pages.layers) return wrong("there is no layer " + std::to_string(at));

  const bool wide = q.element_type() == ffi::F32;
  const auto rows = pages.count && pages.size && tables[1] ? rows_of(table, start, offset, count, tokens) : std::vector<Row>();
  zero_others(rows, tokens, qs[1] * value_dim * (wide ? 4 : 2), static_cast<char*>(out->untyped_data()));
  if (!key_dim || !value_dim || rows.empty()) return ffi::Error::Success();

  char* keys = static_cast<char*>(held.untyped_data()) + at * pages.layer * bytes;
  char* values = keys + pages.side * bytes;
  const Write key{static_cast<const char*>(k.untyped_data()), keys, pages.heads, key_dim * bytes,
                  (pages.latent ? pages.width : key_dim) * bytes};
  const Write value{static_cast<const char*>(v.untyped_data()), values, pages.heads, value_dim * bytes,
                    value_dim * bytes};
  for (const Row& row : rows) {
    write_row(row, pages, bytes, key);
    if (!pages.latent) write_row(row, pages, bytes, value);
  }

  const float* both = scales.typed_data();
  const Attention whole{q.untyped_data(), wide ? Type::kFloat32 : Type::kBFloat16, out->untyped_data(), keys, values,
                        static_cast<Held>(held_type), pages.count, pages.size, pages.page, pages.token, pages.width,
                        qs[1], pages.heads, key_dim, value_dim, scale * both[0], both[1], soft_cap, window,
                        sinks.element_count() ? sinks.typed_data() : nullptr};
  const auto items = items_of(rows, whole, kernels().most_queries(whole), pool.num_threads());
  const int64_t scratch = kernels().attention_scratch(whole);
  share(pool, items.size(), [&](int64_t i) { kernels().attend(whole, items[i].queries, scratch_of(scratch)); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxinfer

extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jaxinfer_attention(XLA_FFI_CallFrame* frame) {
  static auto* handler = xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::ThreadPool>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<xla::ffi::AnyBuffer>()
                             .Arg<jaxinfer::Integers>()
                             .Arg<jaxinfer::Integers>()
                             .Arg<jaxinfer::Integers>()
                             .Arg<jaxinfer::Integers>()
                             .Arg<jaxinfer::Integers>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Ret<xla::ffi::AnyBuffer>()
                             .Ret<xla::ffi::AnyBuffer>()
                             .Attr<int32_t>("held")
                             .Attr<float>("scale")
                             .Attr<int64_t>("window")
                             .Attr<float>("soft_cap")
                             .To(jaxinfer::attention)
                             .release();
  return handler->Call(frame);
}
