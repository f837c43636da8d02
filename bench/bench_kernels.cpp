// The scoring core beside its naive forms, and the ceilings of this machine.
#include "bench/common.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/half.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/kernels/q8_0.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace {

using namespace kvevict;
using kvevict_bench::add;
using kvevict_bench::add_for_every_isa;
using kvevict_bench::normal_values;
using kvevict_bench::Work;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

constexpr std::size_t kDim = 128;

// Inputs live as long as the program: benchmarks run after main has registered them.
template <class T>
std::vector<T>& keep(std::vector<T> values) {
  static std::vector<std::unique_ptr<std::vector<T>>> all;
  all.push_back(std::make_unique<std::vector<T>>(std::move(values)));
  return *all.back();
}

std::vector<std::uint16_t>& keep_f16(const std::vector<float>& values) {
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), kernels::to_f16);
  return keep(std::move(halves));
}

std::vector<std::byte>& keep_q8_0(const std::vector<float>& values) {
  constexpr std::size_t kBlock = block_len(ElementType::kQ8_0);
  std::vector<std::byte> rows(row_bytes(ElementType::kQ8_0, values.size()));
  for (std::size_t i = 0; i < values.size(); i += kBlock)
    kernels::to_q8_0(values.data() + i, rows.data() + row_bytes(ElementType::kQ8_0, i));
  return keep(std::move(rows));
}

kernels::RowBlock block(const void* data, std::size_t num_rows, ElementType type) {
  return {data, static_cast<std::ptrdiff_t>(row_bytes(type, kDim)), num_rows, kDim, type};
}

// The widest registers that this program is compiled for; a wider type would be spilled.
#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));
constexpr std::size_t kVectorFloats = kVectorBytes / sizeof(float);

void ceilings() {
  // Twelve chains hide the latency of a multiply-add and still fit into sixteen registers.
  constexpr std::size_t kChains = 12;
  constexpr std::size_t kRounds = 100'000;
  static Vector sums[kChains];
  add("ceiling", "fma", {.flops = 2.0 * kChains * kVectorFloats * kRounds}, [] {
    Vector local[kChains];
    std::copy(std::begin(sums), std::end(sums), std::begin(local));
    const Vector factor = local[0] * 0.0F + 0.999F;
    for (std::size_t i = 0; i < kRounds; ++i) {
      for (Vector& v : local)
        v = v * factor + factor;  // one instruction: -ffp-contract=fast
    }
    std::copy(std::begin(local), std::end(local), std::begin(sums));
  });
  std::vector<float>& large = keep(std::vector<float>(64 << 20, 1.0F));  // 256 MB
  std::vector<float>& target = keep(std::vector<float>(large.size()));
  const auto sum_of = [](const float* data, std::size_t n) {
    Vector total[8] = {};
    for (std::size_t i = 0; i + 8 * kVectorFloats <= n; i += 8 * kVectorFloats) {
      for (std::size_t v = 0; v < 8; ++v) {
        Vector x;
        std::memcpy(&x, data + i + kVectorFloats * v, sizeof x);
        total[v] += x;
      }
    }
    benchmark::DoNotOptimize(total);
  };
  add("ceiling", "read", {.bytes = 4.0 * static_cast<double>(large.size())},
      [&large, sum_of] { sum_of(large.data(), large.size()); });
  add("ceiling", "copy", {.bytes = 8.0 * static_cast<double>(large.size())},
      [&large, &target] { std::memcpy(target.data(), large.data(), 4 * large.size()); });
  // Reading 256 KB again and again: more than L1 holds, less than L2.
  std::vector<float>& small = keep(std::vector<float>(64 << 10, 1.0F));
  add("ceiling", "l2", {.bytes = 4.0 * 16 * static_cast<double>(small.size())}, [&small, sum_of] {
    for (int i = 0; i < 16; ++i)
      sum_of(small.data(), small.size());
  });
}

// | v W_O | of cached values: Gram and Cholesky once, then a triangle for each value.
void projected_norms() {
  constexpr std::size_t kRows = 2048;
  constexpr std::size_t kHidden = 4096;
  std::vector<float>& weight = keep(normal_values(kDim * kHidden, 1));
  std::vector<float>& values = keep(normal_values(kRows * kDim, 2));
  std::vector<std::uint16_t>& halves = keep_f16(values);
  std::vector<std::byte>& blocks = keep_q8_0(values);
  std::vector<float>& factor = keep(std::vector<float>(kDim * kDim));
  kernels::gram_cholesky(weight.data(), kDim, kHidden, kHidden, factor.data());
  std::vector<float>& out = keep(std::vector<float>(kRows));
  const Work work{.ceiling = "fma", .flops = static_cast<double>(kRows * kDim * (kDim + 1))};
  add("kernel/projected_norms", "naive", {}, [&] {
    const RowMatrix product =
        ConstMap(values.data(), kRows, kDim) * ConstMap(weight.data(), kDim, kHidden);
    Eigen::Map<Eigen::VectorXf>(out.data(), kRows) = product.rowwise().norm();
  });
  add_for_every_isa("kernel/projected_norms", work, [&](const kernels::KernelSet& k) {
    k.projected_norms(factor.data(), block(values.data(), kRows, ElementType::kF32), out.data());
  });
  add_for_every_isa("kernel/projected_norms_f16", work, [&](const kernels::KernelSet& k) {
    k.projected_norms(factor.data(), block(halves.data(), kRows, ElementType::kF16), out.data());
  });
  add_for_every_isa("kernel/projected_norms_q8_0", work, [&](const kernels::KernelSet& k) {
    k.projected_norms(factor.data(), block(blocks.data(), kRows, ElementType::kQ8_0), out.data());
  });
}

// Column sums of the softmax of 32 queries over n keys: what SnapKV needs of one head.
void window_columns() {
  constexpr std::size_t kWindow = 32;
  constexpr std::size_t kKeys = 16384;
  std::vector<float>& keys = keep(normal_values(kKeys * kDim, 3));
  std::vector<std::uint16_t>& half_keys = keep_f16(keys);
  std::vector<std::byte>& q8_0_keys = keep_q8_0(keys);
  std::vector<float>& queries = keep(normal_values(kWindow * kDim, 4));
  std::vector<float>& out = keep(std::vector<float>(kKeys));
  const CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim};
  const Work work{.ceiling = "fma", .flops = 2.0 * kWindow * kKeys * kDim};
  add("kernel/window_columns", "naive", {}, [&] {
    RowMatrix rows = ConstMap(queries.data(), kWindow, kDim) *
                     ConstMap(keys.data(), kKeys, kDim).transpose() / std::sqrt(float{kDim});
    rows = (rows.colwise() - rows.rowwise().maxCoeff()).array().exp().matrix();
    rows.array().colwise() /= rows.rowwise().sum().array();
    Eigen::Map<Eigen::RowVectorXf>(out.data(), kKeys) = rows.colwise().sum();
  });
  const auto columns = [&, shape](const kernels::KernelSet& k, void* data, ElementType type) {
    static RowsFromQueries rows;
    static AttentionColumns sums(shape, RowReduce::kSum, HeadReduce::kGroupMean);
    sums.reset();
    sums.append(kKeys);
    const views::Tensor tensor = views::Tensor::hnd(data, type, kKeys, 1, kDim);
    const views::ContiguousView view(shape, tensor, tensor, kKeys);
    rows.visit({.data = queries.data(),
                .num_q_heads = 1,
                .num_rows = kWindow,
                .head_stride = 0,
                .row_stride = kDim},
               shape, 0, 0, view.lane(0, 0), kKeys, kWindow, k,
               [&](const GroupRows& group) { sums.observe(group, k); });
    benchmark::DoNotOptimize(sums.of(0, 0).data());
  };
  add_for_every_isa("kernel/window_columns", work, [&, columns](const kernels::KernelSet& k) {
    columns(k, keys.data(), ElementType::kF32);
  });
  add_for_every_isa("kernel/window_columns_f16", work, [&, columns](const kernels::KernelSet& k) {
    columns(k, half_keys.data(), ElementType::kF16);
  });
  add_for_every_isa("kernel/window_columns_q8_0", work, [&, columns](const kernels::KernelSet& k) {
    columns(k, q8_0_keys.data(), ElementType::kQ8_0);
  });
}

// One query over many keys, memory-bound: an attention row while decoding; key norms.
void rows_in_memory() {
  constexpr std::size_t kRows = 131072;
  std::vector<float>& rows = keep(normal_values(kRows * kDim, 5));
  std::vector<std::byte>& blocks = keep_q8_0(rows);
  std::vector<float>& out = keep(std::vector<float>(kRows));
  const Work work{.ceiling = "read", .bytes = 4.0 * kRows * kDim};
  const Work q8_0_work{.ceiling = "read", .bytes = static_cast<double>(blocks.size())};
  add("kernel/one_query_dots", "naive", {}, [&] {
    Eigen::Map<Eigen::VectorXf>(out.data(), kRows) =
        ConstMap(rows.data(), kRows, kDim) * Eigen::Map<const Eigen::VectorXf>(rows.data(), kDim);
  });
  add_for_every_isa("kernel/one_query_dots", work, [&](const kernels::KernelSet& k) {
    k.row_dots(rows.data(), 1, kDim, block(rows.data(), kRows, ElementType::kF32), out.data(),
               kRows);
  });
  add_for_every_isa("kernel/one_query_dots_q8_0", q8_0_work, [&](const kernels::KernelSet& k) {
    k.row_dots(rows.data(), 1, kDim, block(blocks.data(), kRows, ElementType::kQ8_0), out.data(),
               kRows);
  });
  add("kernel/row_norms", "naive", {}, [&] {
    Eigen::Map<Eigen::VectorXf>(out.data(), kRows) =
        ConstMap(rows.data(), kRows, kDim).rowwise().norm();
  });
  add_for_every_isa("kernel/row_norms", work, [&](const kernels::KernelSet& k) {
    k.row_norms(block(rows.data(), kRows, ElementType::kF32), out.data());
  });
  add_for_every_isa("kernel/row_norms_q8_0", q8_0_work, [&](const kernels::KernelSet& k) {
    k.row_norms(block(blocks.data(), kRows, ElementType::kQ8_0), out.data());
  });
  add("kernel/row_variances", "naive", {}, [&] {
    const ConstMap map(rows.data(), kRows, kDim);
    const Eigen::VectorXf mean = map.rowwise().mean();
    Eigen::Map<Eigen::VectorXf>(out.data(), kRows) =
        (map.colwise() - mean).rowwise().squaredNorm() / float{kDim - 1};
  });
  add_for_every_isa("kernel/row_variances", work, [&](const kernels::KernelSet& k) {
    k.row_variances(block(rows.data(), kRows, ElementType::kF32), out.data());
  });
  std::vector<float>& low = keep(normal_values(kDim, 11));
  std::vector<float>& scales = keep(std::vector<float>(kDim, 0.2F));
  add("kernel/scaled_variance", "naive", {}, [&] {
    const Eigen::Map<const Eigen::ArrayXf> first(low.data(), kDim);
    const Eigen::Map<const Eigen::ArrayXf> scale(scales.data(), kDim);
    for (std::size_t i = 0; i < kRows; ++i) {
      Eigen::ArrayXf scaled =
          (Eigen::Map<const Eigen::ArrayXf>(rows.data() + i * kDim, kDim) - first) * scale;
      scaled = scaled.isFinite().select(scaled, 0.0F);
      out[i] = (scaled - scaled.mean()).square().sum() / float{kDim - 1};
    }
  });
  add_for_every_isa("kernel/scaled_variance", work, [&](const kernels::KernelSet& k) {
    for (std::size_t i = 0; i < kRows; ++i)
      out[i] = k.scaled_variance(rows.data() + i * kDim, low.data(), scales.data(), kDim);
  });
}

// Passes over one value per slot, in L2.
void passes_over_slots() {
  constexpr std::size_t kSlots = 32768;
  std::vector<float>& x = keep(normal_values(kSlots, 6));
  std::vector<float>& y = keep(normal_values(kSlots, 7));
  std::vector<float>& out = keep(std::vector<float>(kSlots));
  using Map = Eigen::Map<Eigen::ArrayXf>;
  const auto work = [](double arrays) {
    return Work{.ceiling = "l2", .bytes = 4.0 * arrays * kSlots};
  };
  add("kernel/exp_shifted", "naive", {}, [&] {
    Map(out.data(), kSlots) = (Map(x.data(), kSlots) - 4.0F).exp();
    benchmark::DoNotOptimize(Map(out.data(), kSlots).sum());
  });
  add_for_every_isa("kernel/exp_shifted", work(2), [&](const kernels::KernelSet& k) {
    std::memcpy(out.data(), x.data(), 4 * kSlots);
    benchmark::DoNotOptimize(k.exp_shifted(4.0F, kSlots, out.data()));
  });
  add("kernel/ema", "naive", {},
      [&] { Map(y.data(), kSlots) = 0.8F * Map(y.data(), kSlots) + 0.2F * Map(x.data(), kSlots); });
  add_for_every_isa("kernel/ema", work(3),
                    [&](const kernels::KernelSet& k) { k.ema(0.8F, x.data(), kSlots, y.data()); });
  add("kernel/add", "naive", {}, [&] { Map(out.data(), kSlots) += 0.25F * Map(x.data(), kSlots); });
  add_for_every_isa("kernel/add", work(3), [&](const kernels::KernelSet& k) {
    k.add(0.25F, x.data(), kSlots, out.data());
  });
  const auto loop = [&](bool largest) {
    for (std::size_t i = 0; i < kSlots; ++i) {
      float best = -INFINITY;
      float sum = 0.0F;
      for (std::size_t j = i > 3 ? i - 3 : 0; j < std::min(kSlots, i + 4); ++j) {
        best = std::max(best, x[j]);
        sum += x[j];
      }
      out[i] = largest ? best : sum / 7.0F;
    }
  };
  add("kernel/max_pool_7", "naive", {}, [=] { loop(true); });
  add_for_every_isa("kernel/max_pool_7", work(2), [&](const kernels::KernelSet& k) {
    k.max_pool(x.data(), kSlots, 7, out.data());
  });
  add("kernel/average_pool_7", "naive", {}, [=] { loop(false); });
  add_for_every_isa("kernel/average_pool_7", work(2), [&](const kernels::KernelSet& k) {
    k.average_pool(x.data(), kSlots, 7, kernels::PoolEdge::kZeroCounted, out.data());
  });
}

// The other passes, each beside its loop in Eigen.
void more_passes() {
  constexpr std::size_t kSlots = 32768;
  std::vector<float>& x = keep(normal_values(kSlots, 21));
  std::vector<float>& y = keep(normal_values(kSlots, 22));
  std::vector<float>& z = keep(normal_values(kSlots, 23));
  std::vector<std::uint16_t>& halves = keep_f16(x);
  std::vector<float>& out = keep(std::vector<float>(kSlots));
  std::vector<std::uint32_t>& keys = keep(std::vector<std::uint32_t>(kSlots));
  // Known to nobody but at run time, so that no loop is taken for idle.
  static volatile float one = 1.0F;
  using Map = Eigen::Map<Eigen::ArrayXf>;
  const auto map = [](std::vector<float>& values) { return Map(values.data(), kSlots); };
  const auto row = [&](const std::string& name, double bytes_per_slot,
                       const std::function<void(const kernels::KernelSet&)>& once,
                       const std::function<void()>& naive) {
    add("kernel/" + name, "naive", {}, naive);
    add_for_every_isa("kernel/" + name, {.ceiling = "l2", .bytes = bytes_per_slot * kSlots}, once);
  };
  row(
      "widen_f16", 6,
      [&](const kernels::KernelSet& k) {
        k.widen(halves.data(), ElementType::kF16, kSlots, out.data());
      },
      [&] {
        for (std::size_t i = 0; i < kSlots; ++i)
          out[i] = kernels::from_f16(halves[i]);
      });
  row(
      "squared_distance", 8,
      [&](const kernels::KernelSet& k) {
        benchmark::DoNotOptimize(k.squared_distance(x.data(), y.data(), kSlots));
      },
      [&] { benchmark::DoNotOptimize((map(x) - map(y)).cast<double>().square().sum()); });
  row(
      "sum", 4,
      [&](const kernels::KernelSet& k) { benchmark::DoNotOptimize(k.sum(x.data(), kSlots)); },
      [&] { benchmark::DoNotOptimize(map(x).cast<double>().sum()); });
  row(
      "max_value", 4,
      [&](const kernels::KernelSet& k) { benchmark::DoNotOptimize(k.max_value(x.data(), kSlots)); },
      [&] { benchmark::DoNotOptimize(map(x).maxCoeff()); });
  row(
      "scale", 8, [&](const kernels::KernelSet& k) { k.scale(float{one}, kSlots, out.data()); },
      [&] { map(out) *= float{one}; });
  row(
      "scale_logits", 8,
      [&](const kernels::KernelSet& k) {
        float largest = 0.0F;
        benchmark::DoNotOptimize(k.scale_logits(float{one}, kSlots, x.data(), largest));
        benchmark::DoNotOptimize(largest);
      },
      [&] {
        map(x) *= float{one};
        benchmark::DoNotOptimize(map(x).maxCoeff());
        benchmark::DoNotOptimize(map(x).isFinite().count());
      });
  row(
      "standardise", 8,
      [&](const kernels::KernelSet& k) { k.standardise(one - 1.0, one, kSlots, x.data()); },
      [&] { map(x) = ((map(x).cast<double>() - (one - 1.0)) * double{one}).cast<float>(); });
  row(
      "take_ranges", 20,
      [&](const kernels::KernelSet& k) { k.take_ranges(x.data(), kSlots, y.data(), z.data()); },
      [&] {
        map(y) = map(y).min(map(x));
        map(z) = map(z).max(map(x));
      });
  row(
      "soft_cap", 8, [&](const kernels::KernelSet& k) { k.soft_cap(30.0F, kSlots, x.data()); },
      [&] { map(x) = 30.0F * (map(x) / 30.0F).tanh(); });
  static std::vector<float>& four = keep(normal_values(4 * kSlots, 8));
  static const std::vector<float> shares(4, 0.25F);
  row(
      "add_rows_4", 24,
      [&](const kernels::KernelSet& k) {
        k.add_rows(shares.data(), four.data(), kSlots, 4, kSlots, out.data());
      },
      [&] {
        for (std::size_t r = 0; r < 4; ++r)
          map(out) += 0.25F * Eigen::Map<Eigen::ArrayXf>(four.data() + r * kSlots, kSlots);
      });
  row(
      "add_squared", 12,
      [&](const kernels::KernelSet& k) { k.add_squared(0.25F, x.data(), kSlots, out.data()); },
      [&] { map(out) += (0.25F * map(x)).square(); });
  row(
      "add_product", 16,
      [&](const kernels::KernelSet& k) {
        k.add_product(0.25F, x.data(), y.data(), kSlots, out.data());
      },
      [&] { map(out) += 0.25F * map(x) * map(y); });
  row(
      "take_max", 12,
      [&](const kernels::KernelSet& k) { k.take_max(0.25F, x.data(), kSlots, out.data()); },
      [&] { map(out) = map(out).max(0.25F * map(x)); });
  row(
      "order_keys", 8,
      [&](const kernels::KernelSet& k) { k.order_keys(x.data(), kSlots, keys.data()); },
      [&] {
        for (std::size_t i = 0; i < kSlots; ++i)
          keys[i] = kernels::order_key(x[i]);
      });
  row(
      "lowest_key", 4,
      [&](const kernels::KernelSet& k) {
        benchmark::DoNotOptimize(k.lowest_key(x.data(), kSlots));
      },
      [&] {
        std::uint32_t lowest = ~0U;
        for (const float value : x)
          lowest = std::min(lowest, kernels::order_key(value));
        benchmark::DoNotOptimize(lowest);
      });
  row(
      "compare_keys", 4,
      [&](const kernels::KernelSet& k) {
        for (std::size_t i = 0; i < kSlots; i += 64)
          benchmark::DoNotOptimize(k.compare_keys(x.data() + i, 64, 1U << 31, 3U << 30));
      },
      [&] {
        for (std::size_t i = 0; i < kSlots; i += 64) {
          std::uint64_t above = 0;
          std::uint64_t inside = 0;
          for (std::size_t b = 0; b < 64; ++b) {
            const std::uint32_t key = kernels::order_key(x[i + b]);
            above |= std::uint64_t{key > 3U << 30} << b;
            inside |= std::uint64_t{key >= 1U << 31 && key <= 3U << 30} << b;
          }
          benchmark::DoNotOptimize(above);
          benchmark::DoNotOptimize(inside);
        }
      });
  // Four vectors: products with the channels, and with the lengths of the bands.
  constexpr std::size_t kWidth = kDim + kDim / 2;
  const std::vector<float>& vectors = keep(normal_values(4 * kWidth, 12));
  row(
      "band_dots", 4,
      [&](const kernels::KernelSet& k) {
        k.band_dots(vectors.data(), 4, kWidth, block(x.data(), kSlots / kDim, ElementType::kF32),
                    false, out.data(), kSlots / kDim);
      },
      [&] {
        const ConstMap rows(x.data(), kSlots / kDim, kDim);
        const ConstMap both(vectors.data(), 4, kWidth);
        const RowMatrix lengths =
            (rows.leftCols(kDim / 2).array().square() + rows.rightCols(kDim / 2).array().square())
                .sqrt()
                .matrix();
        Eigen::Map<RowMatrix>(out.data(), 4, kSlots / kDim) =
            both.leftCols(kDim) * rows.transpose() + both.rightCols(kDim / 2) * lengths.transpose();
      });
}

// A tenth of all scores of the model stays.
void global_top_k() {
  constexpr std::size_t kScores = 1 << 22;
  std::vector<float>& scores = keep(normal_values(kScores, 8));
  std::vector<std::uint64_t>& candidates =
      keep(std::vector<std::uint64_t>(kScores / 64, ~std::uint64_t{0}));
  std::vector<std::uint64_t>& mask = keep(std::vector<std::uint64_t>(kScores / 64));
  std::vector<std::uint32_t>& indices = keep(std::vector<std::uint32_t>(kScores));
  add("kernel/global_top_k", "naive", {}, [&] {
    std::iota(indices.begin(), indices.end(), 0U);
    std::nth_element(indices.begin(), indices.begin() + kScores / 10, indices.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return scores[a] > scores[b]; });
    std::fill(mask.begin(), mask.end(), 0);
    for (std::size_t i = 0; i < kScores / 10; ++i) {
      mask[indices[i] / 64] |= std::uint64_t{1} << (indices[i] % 64);
    }
  });
  add("kernel/global_top_k", "scalar", {.ceiling = "read", .bytes = 4.0 * kScores}, [&] {
    std::fill(mask.begin(), mask.end(), 0);
    const ScoredLane lane{0, scores, candidates, mask};
    select_top_k({&lane, 1}, kScores / 10);
  });
}

// Nine tenths of an f16 cache go at random; the rest moves to the front of each lane.
void compaction() {
  constexpr std::size_t kHeads = 8;
  constexpr std::size_t kSlots = 16384;
  constexpr std::size_t kKept = kSlots / 10;
  const CacheShape shape{
      .num_layers = 2, .num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim};
  const std::size_t size = 2 * kHeads * kSlots * kDim;
  std::vector<std::uint16_t>& keys = keep(std::vector<std::uint16_t>(size));
  std::vector<std::uint16_t>& values = keep(std::vector<std::uint16_t>(size));
  static KeepMask mask;
  mask.reset(MaskScope::kHead, 2, kHeads);
  std::mt19937 random(9);
  for (std::size_t lane = 0; lane < 2 * kHeads; ++lane) {
    const auto bits = mask.add_lane(kSlots);
    for (std::size_t kept = 0; kept < kKept;) {
      const std::size_t slot = random() % kSlots;
      const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
      kept += (bits[slot / 64] & bit) == 0 ? 1 : 0;
      bits[slot / 64] |= bit;
    }
  }
  const double moved = 2.0 * 2 * (2 * kHeads) * kKept * kDim * 2;  // K and V, read and write
  add("kernel/compact_f16", "naive", {}, [&, size] {
    for (auto* data : {&keys, &values}) {
      std::vector<std::uint16_t> gathered;
      gathered.reserve(size / 10 + kDim);
      for (std::size_t lane = 0; lane < 2 * kHeads; ++lane) {
        for (std::size_t slot = 0; slot < kSlots; ++slot) {
          if (!mask.keeps(lane / kHeads, lane % kHeads, slot))
            continue;
          const auto row =
              data->begin() + static_cast<std::ptrdiff_t>((lane * kSlots + slot) * kDim);
          gathered.insert(gathered.end(), row, row + kDim);
        }
      }
      benchmark::DoNotOptimize(gathered.data());
    }
  });
  add("kernel/compact_f16", "scalar", {.ceiling = "copy", .bytes = moved}, [&, shape] {
    const auto tensor = [](std::vector<std::uint16_t>& data) {
      return views::Tensor::hnd(data.data(), ElementType::kF16, kSlots, kHeads, kDim);
    };
    compact(views::ContiguousView(shape, tensor(keys), tensor(values), kSlots), mask);
  });
}

const bool kRegistered = [] {
  ceilings();
  projected_norms();
  window_columns();
  rows_in_memory();
  passes_over_slots();
  more_passes();
  global_top_k();
  compaction();
  return true;
}();

}  // namespace
