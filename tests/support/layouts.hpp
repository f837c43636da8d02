#ifndef KVEVICT_TESTS_SUPPORT_LAYOUTS_HPP_
#define KVEVICT_TESTS_SUPPORT_LAYOUTS_HPP_

#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/half.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "kvevict/views/paged_view.hpp"
#include "kvevict/views/ragged_view.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The ways in which engines lay out a cache, each with its own formula for where an element lies.
// The formulas are written out once more here, independently of the strides that the views compute.
namespace kvevict_test {

enum class Part : std::uint8_t { kKeys, kValues };

/// Where an element of K or V lies, counted in elements from the start of the memory.
using Address = std::function<std::size_t(Part part, std::size_t layer, std::size_t head,
                                          std::size_t slot, std::size_t channel)>;

/// A cache in one of the layouts. Memory that holds no live row is all ones, which is NaN in every
/// element type: whoever reads it, shows it.
class LayoutCache {
 public:
  /// What the library sees of (layer, head); made from one of its views.
  using LaneOf =
      std::function<kvevict::MutableLane(LayoutCache& cache, std::size_t layer, std::size_t head)>;

  LayoutCache(const kvevict::CacheShape& shape, kvevict::ElementType type, std::size_t num_elements,
              Address address, LaneOf lane_of, std::vector<std::int32_t> table = {})
      : shape_(shape),
        type_(type),
        address_(std::move(address)),
        lane_of_(std::move(lane_of)),
        table_(std::move(table)),
        lengths_(shape.num_layers * shape.num_kv_heads, 0),
        paddings_(lengths_),
        memory_(2 * kGuard + kvevict::row_bytes(type, num_elements), std::byte{0xFF}) {}

  /// The library's view, good while this object lives.
  class View {
   public:
    explicit View(LayoutCache& cache) noexcept : cache_(&cache) {}
    [[nodiscard]] const kvevict::CacheShape& shape() const { return cache_->shape_; }
    [[nodiscard]] kvevict::MutableLane mutable_lane(std::size_t layer, std::size_t head) const {
      kvevict::MutableLane lane = cache_->lane_of_(*cache_, layer, head);
      if (const std::size_t padding = cache_->padding(layer, head); padding > 0)
        lane.valid = flags_behind(padding);
      return lane;
    }
    [[nodiscard]] kvevict::Lane lane(std::size_t layer, std::size_t head) const {
      return kvevict::views::read_only(mutable_lane(layer, head));
    }

   private:
    // Zeros and then ones, of which each padding has a part.
    static std::span<const std::uint8_t> flags_behind(std::size_t padding) {
      constexpr std::size_t kMost = 64;
      static const std::vector<std::uint8_t> flags = [] {
        std::vector<std::uint8_t> all(64 * kMost, 1);
        std::fill_n(all.begin(), kMost, std::uint8_t{0});
        return all;
      }();
      return std::span(flags).subspan(kMost - padding);
    }

    LayoutCache* cache_;
  };
  [[nodiscard]] View view() { return View(*this); }

  [[nodiscard]] const kvevict::CacheShape& shape() const { return shape_; }
  [[nodiscard]] kvevict::ElementType type() const { return type_; }
  [[nodiscard]] std::size_t dim(Part part) const {
    return part == Part::kKeys ? shape_.head_dim : shape_.value_size();
  }
  [[nodiscard]] std::byte* data() { return memory_.data() + kGuard; }
  [[nodiscard]] const std::vector<std::int32_t>& table() const { return table_; }
  [[nodiscard]] std::size_t& length(std::size_t layer, std::size_t head) {
    return lengths_[layer * shape_.num_kv_heads + head];
  }
  [[nodiscard]] const std::vector<std::size_t>& lengths() const { return lengths_; }
  /// First slots of a lane, at most 64, that the view says are not valid.
  [[nodiscard]] std::size_t& padding(std::size_t layer, std::size_t head) {
    return paddings_[layer * shape_.num_kv_heads + head];
  }
  /// Where the block that begins with `channel` lies; most types have blocks of one element.
  [[nodiscard]] std::size_t block_offset(Part part, std::size_t layer, std::size_t head,
                                         std::size_t slot, std::size_t channel) const {
    return kGuard + kvevict::row_bytes(type_, address_(part, layer, head, slot, channel));
  }

  void set(Part part, std::size_t layer, std::size_t head, std::size_t slot,
           const std::vector<float>& row) {
    for (std::size_t c = 0; c < dim(part); c += block_len(type_)) {
      std::byte* at = memory_.data() + block_offset(part, layer, head, slot, c);
      if (type_ == kvevict::ElementType::kF32) {
        std::memcpy(at, &row[c], sizeof(float));
      } else if (type_ == kvevict::ElementType::kQ8_0) {
        write_q8_0(&row[c], slot + c / block_len(type_), at);
      } else {
        const std::uint16_t half = type_ == kvevict::ElementType::kF16
                                       ? kvevict::kernels::to_f16(row[c])
                                       : kvevict::kernels::to_bf16(row[c]);
        std::memcpy(at, &half, sizeof(half));
      }
    }
  }
  [[nodiscard]] std::vector<float> row(Part part, std::size_t layer, std::size_t head,
                                       std::size_t slot) const {
    std::vector<float> row(dim(part));
    for (std::size_t c = 0; c < row.size(); c += block_len(type_)) {
      const std::byte* at = memory_.data() + block_offset(part, layer, head, slot, c);
      if (type_ == kvevict::ElementType::kF32) {
        std::memcpy(&row[c], at, sizeof(float));
      } else if (type_ == kvevict::ElementType::kQ8_0) {
        read_q8_0(at, &row[c]);
      } else {
        std::uint16_t half = 0;
        std::memcpy(&half, at, sizeof(half));
        row[c] = type_ == kvevict::ElementType::kF16 ? kvevict::kernels::from_f16(half)
                                                     : kvevict::kernels::from_bf16(half);
      }
    }
    return row;
  }
  /// Sets all of the memory behind a lane's last live row back to all ones.
  void forget_behind(std::size_t layer, std::size_t head, std::size_t old_length) {
    for (std::size_t slot = length(layer, head); slot < old_length; ++slot) {
      for (const Part part : {Part::kKeys, Part::kValues}) {
        for (std::size_t c = 0; c < dim(part); c += block_len(type_)) {
          std::fill_n(memory_.data() + block_offset(part, layer, head, slot, c),
                      kvevict::row_bytes(type_, block_len(type_)), std::byte{0xFF});
        }
      }
    }
  }

  [[nodiscard]] const std::vector<std::byte>& memory() const { return memory_; }
  /// Which bytes of the memory belong to live rows.
  [[nodiscard]] std::vector<bool> live_bytes() const {
    std::vector<bool> live(memory_.size(), false);
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
        const std::size_t length = lengths_[layer * shape_.num_kv_heads + head];
        for (std::size_t slot = 0; slot < length; ++slot) {
          for (const Part part : {Part::kKeys, Part::kValues}) {
            for (std::size_t c = 0; c < dim(part); c += block_len(type_)) {
              const std::size_t at = block_offset(part, layer, head, slot, c);
              std::fill_n(live.begin() + static_cast<std::ptrdiff_t>(at),
                          kvevict::row_bytes(type_, block_len(type_)), true);
            }
          }
        }
      }
    }
    return live;
  }

 private:
  static constexpr std::size_t kGuard = 64;

  // Scales of 1/8, 1/16 and 1/32 in turn, in which the numbers of the tests are exact.
  static void write_q8_0(const float* row, std::size_t number, std::byte* block) {
    const bool finite = std::all_of(row, row + 32, [](float x) { return std::isfinite(x); });
    const float scale = finite ? std::ldexp(1.0F, -3 - static_cast<int>(number % 3))
                               : std::numeric_limits<float>::quiet_NaN();
    const std::uint16_t half = kvevict::kernels::to_f16(scale);
    std::memcpy(block, &half, sizeof(half));
    for (std::size_t i = 0; i < 32; ++i)
      block[2 + i] =
          finite ? static_cast<std::byte>(static_cast<std::int8_t>(row[i] / scale)) : std::byte{1};
  }
  static void read_q8_0(const std::byte* block, float* row) {
    std::uint16_t half = 0;
    std::memcpy(&half, block, sizeof(half));
    for (std::size_t i = 0; i < 32; ++i) {
      row[i] = kvevict::kernels::from_f16(half) *
               static_cast<float>(std::to_integer<std::int8_t>(block[2 + i]));
    }
  }

  kvevict::CacheShape shape_;
  kvevict::ElementType type_;
  Address address_;
  LaneOf lane_of_;
  std::vector<std::int32_t> table_;
  std::vector<std::size_t> lengths_;   // [num_layers, num_kv_heads]
  std::vector<std::size_t> paddings_;  // the same
  std::vector<std::byte> memory_;
};

struct Layout {
  std::string name;
  std::function<LayoutCache(const kvevict::CacheShape& shape, std::size_t capacity)> make;
  std::size_t block_len = 1;  ///< head_dim and value_dim are multiples of it

  /// The shape with a block in place of each channel.
  [[nodiscard]] kvevict::CacheShape fitting(kvevict::CacheShape shape) const {
    shape.head_dim *= block_len;
    shape.value_dim *= block_len;
    return shape;
  }
};

namespace layouts {

using kvevict::CacheShape;
using kvevict::ElementType;
using kvevict::MutableLane;
using kvevict::views::PagePool;
using kvevict::views::Tensor;

inline constexpr std::size_t kPageSize = 4;

[[nodiscard]] inline std::size_t num_rows(const CacheShape& shape, std::size_t capacity) {
  return shape.num_layers * shape.num_kv_heads * capacity;
}
[[nodiscard]] inline std::byte* at(LayoutCache& cache, std::size_t element) {
  return cache.data() + kvevict::row_bytes(cache.type(), element);
}
[[nodiscard]] inline kvevict::views::ContiguousView contiguous(LayoutCache& cache,
                                                               const Tensor& keys,
                                                               const Tensor& values) {
  return {cache.shape(), keys, values, cache.lengths()};
}

/// [layers, capacity, heads, dim], V behind K.
[[nodiscard]] inline LayoutCache nhd(const CacheShape& shape, std::size_t capacity,
                                     ElementType type) {
  const std::size_t behind_keys = num_rows(shape, capacity) * shape.head_dim;
  const std::size_t heads = shape.num_kv_heads;
  return LayoutCache(
      shape, type, behind_keys + num_rows(shape, capacity) * shape.value_size(),
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const std::size_t row = (l * capacity + s) * heads + h;
        return part == Part::kKeys ? row * shape.head_dim + c
                                   : behind_keys + row * shape.value_size() + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        return contiguous(
                   cache, Tensor::nhd(at(cache, 0), type, capacity, heads, shape.head_dim),
                   Tensor::nhd(at(cache, behind_keys), type, capacity, heads, shape.value_size()))
            .mutable_lane(l, h);
      });
}

/// [layers, heads, capacity, dim], V behind K.
[[nodiscard]] inline LayoutCache hnd(const CacheShape& shape, std::size_t capacity,
                                     ElementType type) {
  const std::size_t behind_keys = num_rows(shape, capacity) * shape.head_dim;
  const std::size_t heads = shape.num_kv_heads;
  return LayoutCache(
      shape, type, behind_keys + num_rows(shape, capacity) * shape.value_size(),
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const std::size_t row = (l * heads + h) * capacity + s;
        return part == Part::kKeys ? row * shape.head_dim + c
                                   : behind_keys + row * shape.value_size() + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        return contiguous(
                   cache, Tensor::hnd(at(cache, 0), type, capacity, heads, shape.head_dim),
                   Tensor::hnd(at(cache, behind_keys), type, capacity, heads, shape.value_size()))
            .mutable_lane(l, h);
      });
}

/// K [layers, heads, capacity, dim] or, like V, transposed: [layers, heads, dim, capacity].
[[nodiscard]] inline LayoutCache transposed(const CacheShape& shape, std::size_t capacity,
                                            ElementType type, bool keys_too) {
  const std::size_t behind_keys = num_rows(shape, capacity) * shape.head_dim;
  const std::size_t heads = shape.num_kv_heads;
  return LayoutCache(
      shape, type, behind_keys + num_rows(shape, capacity) * shape.value_size(),
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const std::size_t lane = l * heads + h;
        if (part == Part::kValues) {
          return behind_keys + (lane * shape.value_size() + c) * capacity + s;
        }
        return keys_too ? (lane * shape.head_dim + c) * capacity + s
                        : (lane * capacity + s) * shape.head_dim + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        const auto tensor = keys_too ? Tensor::transposed : Tensor::hnd;
        return contiguous(cache, tensor(at(cache, 0), type, capacity, heads, shape.head_dim),
                          Tensor::transposed(at(cache, behind_keys), type, capacity, heads,
                                             shape.value_size()))
            .mutable_lane(l, h);
      });
}

/// [layers, capacity, heads, key | value]: both rows of a token in one, so neither tensor is dense.
[[nodiscard]] inline LayoutCache joined(const CacheShape& shape, std::size_t capacity,
                                        ElementType type) {
  const std::size_t width = shape.head_dim + shape.value_size();
  const std::size_t heads = shape.num_kv_heads;
  return LayoutCache(
      shape, type, num_rows(shape, capacity) * width,
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        return ((l * capacity + s) * heads + h) * width +
               (part == Part::kKeys ? c : shape.head_dim + c);
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        const Tensor keys = Tensor::nhd(at(cache, 0), type, capacity, heads, width);
        Tensor values = keys;
        values.data = at(cache, shape.head_dim);
        return contiguous(cache, keys, values).mutable_lane(l, h);
      });
}

/// A table over more pages than it needs, in no order.
[[nodiscard]] inline std::vector<std::int32_t> shuffled_table(std::size_t num_pages) {
  std::vector<std::int32_t> table(num_pages + 2);
  std::iota(table.begin(), table.end(), 0);
  Random random(17);
  for (std::size_t i = table.size() - 1; i > 0; --i)
    std::swap(table[i], table[random.below(i + 1)]);
  table.resize(num_pages);
  return table;
}

/// [layers, pages, page_size, heads, dim] or [layers, pages, heads, page_size, dim], V behind K.
[[nodiscard]] inline LayoutCache paged(const CacheShape& shape, std::size_t capacity,
                                       ElementType type, std::size_t page_size, bool head_major,
                                       bool shuffled) {
  const std::size_t used_pages = (capacity + page_size - 1) / page_size;
  const std::size_t num_pages = used_pages + 2;
  const std::size_t heads = shape.num_kv_heads;
  const std::size_t behind_keys = num_rows(shape, num_pages * page_size) * shape.head_dim;
  std::vector<std::int32_t> table(used_pages);
  std::iota(table.begin(), table.end(), 0);
  if (shuffled)
    table = shuffled_table(used_pages);
  return LayoutCache(
      shape, type, behind_keys + num_rows(shape, num_pages * page_size) * shape.value_size(),
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const auto page = static_cast<std::size_t>(table[s / page_size]);
        const std::size_t in_page = s % page_size;
        const std::size_t row = head_major
                                    ? ((l * num_pages + page) * heads + h) * page_size + in_page
                                    : ((l * num_pages + page) * page_size + in_page) * heads + h;
        return part == Part::kKeys ? row * shape.head_dim + c
                                   : behind_keys + row * shape.value_size() + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        const auto pool = head_major ? PagePool::hnd : PagePool::nhd;
        return kvevict::views::PagedView(
                   shape, pool(at(cache, 0), type, num_pages, page_size, heads, shape.head_dim),
                   pool(at(cache, behind_keys), type, num_pages, page_size, heads,
                        shape.value_size()),
                   page_size, cache.table(), cache.lengths())
            .mutable_lane(l, h);
      },
      table);
}

/// [layers, pages, 2, page_size, heads, dim]: K and V share a page. Rows are equally wide.
[[nodiscard]] inline LayoutCache interleaved(const CacheShape& shape, std::size_t capacity,
                                             ElementType type) {
  const std::size_t dim = std::max(shape.head_dim, shape.value_size());
  const std::size_t used_pages = (capacity + kPageSize - 1) / kPageSize;
  const std::size_t num_pages = used_pages + 2;
  const std::size_t heads = shape.num_kv_heads;
  const std::size_t half_page = kPageSize * heads * dim;
  const std::vector<std::int32_t> table = shuffled_table(used_pages);
  return LayoutCache(
      shape, type, shape.num_layers * num_pages * 2 * half_page,
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const auto page = static_cast<std::size_t>(table[s / kPageSize]);
        const std::size_t half = (l * num_pages + page) * 2 + (part == Part::kKeys ? 0 : 1);
        return half * half_page + (s % kPageSize * heads + h) * dim + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        PagePool keys = PagePool::nhd(at(cache, 0), type, num_pages, kPageSize, heads, dim);
        keys.page_stride_bytes =
            static_cast<std::ptrdiff_t>(kvevict::row_bytes(type, 2 * half_page));
        keys.tensor.layer_stride_bytes *= 2;
        PagePool values = keys;
        values.tensor.data = at(cache, half_page);
        return kvevict::views::PagedView(shape, keys, values, kPageSize, cache.table(),
                                         cache.lengths())
            .mutable_lane(l, h);
      },
      table);
}

/// Memory of its own for every (layer, head), with a gap between one and the next.
[[nodiscard]] inline LayoutCache ragged(const CacheShape& shape, std::size_t capacity,
                                        ElementType type) {
  const std::size_t gap = block_len(type) == 1 ? 5 : block_len(type);
  const std::size_t keys_size = capacity * shape.head_dim;
  const std::size_t lane_size = keys_size + capacity * shape.value_size() + gap;
  const std::size_t heads = shape.num_kv_heads;
  return LayoutCache(
      shape, type, shape.num_layers * heads * lane_size,
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const std::size_t lane = (l * heads + h) * lane_size;
        return part == Part::kKeys ? lane + s * shape.head_dim + c
                                   : lane + keys_size + s * shape.value_size() + c;
      },
      [=](LayoutCache& cache, std::size_t l, std::size_t h) {
        std::vector<MutableLane> lanes;
        for (std::size_t i = 0; i < cache.lengths().size(); ++i) {
          lanes.push_back(kvevict::views::RaggedView::dense_lane(
              shape, cache.lengths()[i], at(cache, i * lane_size),
              at(cache, i * lane_size + keys_size), type));
        }
        return kvevict::views::RaggedView(shape, lanes).mutable_lane(l, h);
      });
}

/// Rows that no stride describes: channels from the last to the first, slots from the end. The
/// library only sees functions.
[[nodiscard]] inline LayoutCache callback(const CacheShape& shape, std::size_t capacity) {
  const std::size_t behind_keys = num_rows(shape, capacity) * shape.head_dim;
  const std::size_t heads = shape.num_kv_heads;
  static constexpr auto kRowsOf = [](LayoutCache& cache, std::size_t l, std::size_t h,
                                     auto part_tag) {
    static constexpr Part kPart = decltype(part_tag)::value;
    kvevict::MutableRows rows;
    rows.cache = &cache;
    rows.layer = l;
    rows.kv_head = h;
    rows.load_row = [](const void* object, std::size_t layer, std::size_t head, std::size_t slot,
                       float* out) noexcept {
      const std::vector<float> row =
          static_cast<const LayoutCache*>(object)->row(kPart, layer, head, slot);
      std::copy(row.begin(), row.end(), out);
    };
    rows.move_row = [](const void* object, std::size_t layer, std::size_t head, std::size_t from,
                       std::size_t to) noexcept {
      // The engine owns its memory; the library passes back the pointer that it was given.
      auto* self = const_cast<LayoutCache*>(static_cast<const LayoutCache*>(object));
      self->set(kPart, layer, head, to, self->row(kPart, layer, head, from));
    };
    return rows;
  };
  return LayoutCache(
      shape, ElementType::kF32, behind_keys + num_rows(shape, capacity) * shape.value_size(),
      [=](Part part, std::size_t l, std::size_t h, std::size_t s, std::size_t c) {
        const std::size_t row = (l * heads + h) * capacity + (capacity - 1 - s);
        return part == Part::kKeys ? (row + 1) * shape.head_dim - 1 - c
                                   : behind_keys + (row + 1) * shape.value_size() - 1 - c;
      },
      [](LayoutCache& cache, std::size_t l, std::size_t h) -> MutableLane {
        return {cache.length(l, h),
                kRowsOf(cache, l, h, std::integral_constant<Part, Part::kKeys>{}),
                kRowsOf(cache, l, h, std::integral_constant<Part, Part::kValues>{}),
                {}};
      });
}

}  // namespace layouts

/// All of them; the first is the one that the others are compared with.
[[nodiscard]] inline std::vector<Layout> all_layouts() {
  using kvevict::CacheShape;
  using kvevict::ElementType;
  const auto of = [](auto make, auto... options) {
    return [=](const CacheShape& shape, std::size_t capacity) {
      return make(shape, capacity, options...);
    };
  };
  constexpr std::size_t kPage = layouts::kPageSize;
  return {
      {"nhd", of(layouts::nhd, ElementType::kF32)},
      {"hnd", of(layouts::hnd, ElementType::kF32)},
      {"v_transposed", of(layouts::transposed, ElementType::kF32, false)},
      {"k_and_v_transposed", of(layouts::transposed, ElementType::kF32, true)},
      {"joined", of(layouts::joined, ElementType::kF32)},
      {"paged_nhd", of(layouts::paged, ElementType::kF32, kPage, false, false)},
      {"paged_hnd_shuffled", of(layouts::paged, ElementType::kF32, kPage, true, true)},
      {"interleaved_page", of(layouts::interleaved, ElementType::kF32)},
      {"token_to_slot", of(layouts::paged, ElementType::kF32, std::size_t{1}, false, true)},
      {"ragged", of(layouts::ragged, ElementType::kF32)},
      {"callback", of(layouts::callback)},
      {"nhd_f16", of(layouts::nhd, ElementType::kF16)},
      {"nhd_bf16", of(layouts::nhd, ElementType::kBF16)},
      {"v_transposed_f16", of(layouts::transposed, ElementType::kF16, false)},
      {"paged_hnd_bf16", of(layouts::paged, ElementType::kBF16, kPage, true, true)},
      {"ragged_f16", of(layouts::ragged, ElementType::kF16)},
  };
}

/// Those of q8_0, whose rows are never transposed.
[[nodiscard]] inline std::vector<Layout> q8_0_layouts() {
  using kvevict::CacheShape;
  constexpr auto kType = kvevict::ElementType::kQ8_0;
  const auto layout = [](const char* name, auto make, auto... options) {
    return Layout{name,
                  [=](const CacheShape& shape, std::size_t capacity) {
                    return make(shape, capacity, kType, options...);
                  },
                  block_len(kType)};
  };
  constexpr std::size_t kPage = layouts::kPageSize;
  return {layout("nhd_q8_0", layouts::nhd),
          layout("hnd_q8_0", layouts::hnd),
          layout("joined_q8_0", layouts::joined),
          layout("paged_hnd_q8_0", layouts::paged, kPage, true, true),
          layout("interleaved_page_q8_0", layouts::interleaved),
          layout("token_to_slot_q8_0", layouts::paged, std::size_t{1}, false, true),
          layout("ragged_q8_0", layouts::ragged)};
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_LAYOUTS_HPP_
