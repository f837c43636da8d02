// SnapKV and LaProx at the end of a prompt, for one layer with a quarter of an 8B model's heads.
//
//   policy/<name> observe ...   the window's attention, computed from its queries
//   policy/<name> select ...    scores, and what stays
//   .../naive                   the same with Eigen: every matrix formed, every score in one list

#include "bench/common.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace {

using kvevict::LaProx;
using kvevict::OutputProjection;
using kvevict::SnapKV;
using kvevict_bench::best_slots;
using kvevict_bench::Work;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;
using Eigen::Index;

constexpr kvevict::CacheShape kShape{
    .num_layers = 1, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
constexpr std::size_t kWindow = 32;
constexpr std::size_t kHiddenSize = 4096;

/// A prompt's K and V [kv_heads, len, head_dim] and its last queries [q_heads, window, head_dim].
struct Prompt {
  explicit Prompt(std::size_t prompt_len)
      : len(prompt_len),
        keys(kvevict_bench::normal_values(2 * len * 128, 1)),
        values(kvevict_bench::normal_values(2 * len * 128, 2)),
        queries(kvevict_bench::normal_values(8 * kWindow * 128, 3)) {}

  [[nodiscard]] kvevict::views::ContiguousView view() {
    using kvevict::views::Tensor;
    constexpr auto kType = kvevict::ElementType::kF32;
    return {kShape, Tensor::hnd(keys.data(), kType, len, 2, 128),
            Tensor::hnd(values.data(), kType, len, 2, 128), len};
  }
  [[nodiscard]] kvevict::QueryRows query_rows() const {
    return {.data = queries.data(),
            .num_q_heads = 8,
            .num_rows = kWindow,
            .head_stride = kWindow * 128,
            .row_stride = 128};
  }
  /// The softmax matrix of a query head, [window, len].
  [[nodiscard]] RowMatrix attention(std::size_t q_head) const {
    const ConstMap query(queries.data() + q_head * kWindow * 128, kWindow, 128);
    const ConstMap key(keys.data() + q_head / 4 * len * 128, static_cast<Index>(len), 128);
    RowMatrix rows = query * key.transpose() / std::sqrt(128.0F);
    for (Index r = 0; r < rows.rows(); ++r) {
      const Index visible = rows.cols() - rows.rows() + 1 + r;
      auto row = rows.row(r).head(visible).array();
      row = (row - row.maxCoeff()).exp();
      row /= row.sum();
      rows.row(r).tail(rows.cols() - visible).setZero();
    }
    return rows;
  }

  std::size_t len;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> queries;
};

/// Average of `kernel_size` neighbours with zeros counted.
Eigen::VectorXf pooled(const Eigen::VectorXf& x, Index kernel_size) {
  Eigen::VectorXf out(x.size());
  for (Index i = 0; i < x.size(); ++i) {
    const Index first = std::max<Index>(0, i - kernel_size / 2);
    const Index last = std::min(x.size(), i + kernel_size / 2 + 1);
    out[i] = x.segment(first, last - first).sum() / static_cast<float>(kernel_size);
  }
  return out;
}

template <class P>
void add_observe(const std::string& name, const typename P::Options& options, Prompt& prompt,
                 const std::string& isa) {
  const auto policy = std::make_shared<P>(options, kShape);
  const double flops =
      2.0 * static_cast<double>(prompt.len) * 128 * 8 * static_cast<double>(kWindow);
  kvevict_bench::add(name, isa, Work{.ceiling = "fma", .flops = flops}, [policy, &prompt] {
    // A layer counts once, so every round is a prompt of its own.
    policy->reset();
    policy->begin(prompt.len);
    policy->observe_queries(0, prompt.query_rows(), prompt.view());
  });
}

template <class P>
void add_select(const std::string& name, const typename P::Options& options, Prompt& prompt,
                const Work& work, const std::string& isa) {
  const auto policy = std::make_shared<P>(options, kShape);
  policy->begin(prompt.len);
  policy->observe_queries(0, prompt.query_rows(), prompt.view());
  policy->end_prefill(prompt.view());
  kvevict_bench::add(name, isa, work, [policy, &prompt] {
    benchmark::DoNotOptimize(policy->select(prompt.view()));
  });
}

void snapkv(const std::string& isa) {
  static Prompt prompt(8192);
  const kvevict::SnapKVOptions options{.budget = 1024, .observation_window = kWindow};
  const std::string size = " n=8192 w=32";
  static std::vector<Eigen::VectorXf> sums(2, Eigen::VectorXf::Zero(8192));

  add_observe<SnapKV>("policy/SnapKV observe" + size, options, prompt, isa);
  kvevict_bench::add("policy/SnapKV observe" + size, "naive", {}, [] {
    for (std::size_t head = 0; head < 8; ++head)
      sums[head / 4] += prompt.attention(head).colwise().sum().transpose() / 4.0F;
  });
  add_select<SnapKV>("policy/SnapKV select" + size, options, prompt, {}, isa);
  kvevict_bench::add("policy/SnapKV select" + size, "naive", {}, [] {
    for (const Eigen::VectorXf& sum : sums) {
      benchmark::DoNotOptimize(best_slots(pooled(sum.head(8192 - kWindow), 5), 1024 - kWindow));
    }
  });
}

void laprox(const std::string& isa) {
  static Prompt prompt(2048);
  static const std::vector<float> weight = kvevict_bench::normal_values(8 * 128 * kHiddenSize, 4);
  auto projection =
      std::make_shared<OutputProjection>(kShape, kHiddenSize, kvevict::GroupReading::kMeanNorms);
  projection->set_layer(0, weight.data());
  const kvevict::LaProxOptions options{
      .budget = 256, .observation_window = kWindow, .output_projection = projection};
  const std::string size = " n=2048 w=32";
  static std::vector<Eigen::VectorXf> squares(2, Eigen::VectorXf::Zero(2048));

  add_observe<LaProx>("policy/LaProx observe" + size, options, prompt, isa);
  kvevict_bench::add("policy/LaProx observe" + size, "naive", {}, [] {
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
      RowMatrix mean = RowMatrix::Zero(kWindow, 2048);
      for (std::size_t h = 0; h < 4; ++h)
        mean += prompt.attention(kv_head * 4 + h) / 4.0F;
      squares[kv_head] = mean.colwise().squaredNorm().transpose();
    }
  });
  // The triangle of the factor, for every query head and every value before the window.
  const double flops = 8.0 * (2048 - kWindow) * 128 * 129;
  add_select<LaProx>("policy/LaProx select" + size, options, prompt,
                     Work{.ceiling = "fma", .flops = flops}, isa);
  kvevict_bench::add("policy/LaProx select" + size, "naive", {}, [] {
    constexpr Index kPrefix = 2048 - kWindow;
    Eigen::VectorXf scores(2 * kPrefix);
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
      const ConstMap values(prompt.values.data() + kv_head * 2048 * 128, kPrefix, 128);
      Eigen::VectorXf norms = Eigen::VectorXf::Zero(kPrefix);
      for (std::size_t h = 0; h < 4; ++h) {
        const ConstMap head(weight.data() + (kv_head * 4 + h) * 128 * kHiddenSize, 128,
                            kHiddenSize);
        const RowMatrix product = values * head;
        norms += product.rowwise().norm() / 4.0F;
      }
      const Eigen::VectorXf attention = squares[kv_head].head(kPrefix).cwiseSqrt();
      scores.segment(static_cast<Index>(kv_head) * kPrefix, kPrefix) =
          pooled(attention, 7).cwiseProduct(norms);
    }
    scores /= scores.sum();
    benchmark::DoNotOptimize(best_slots(scores, 2 * (256 - kWindow)));
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::string isa = kvevict_bench::isa_name(kvevict::kernels::best().isa);
  snapkv(isa);
  laprox(isa);
  return true;
}();

}  // namespace
