#ifndef KVEVICT_POLICIES_WORKERS_HPP_
#define KVEVICT_POLICIES_WORKERS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/function_ref.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

/// An executor and what each of its workers has for itself, kept between calls.
class Workers {
 public:
  void use_executor(Executor executor) {
    executor_ = std::move(executor);
    workers_.resize(executor_.num_workers());
  }
  [[nodiscard]] const Executor& executor() const noexcept { return executor_; }
  /// Of what goes in order.
  [[nodiscard]] Scratch& scratch() noexcept { return workers_.front().scratch; }
  [[nodiscard]] Scratch& scratch(std::size_t worker) noexcept { return workers_[worker].scratch; }

  /// Which worker meets the longest lane is chance: once one has, all have the memory for it.
  void share_sizes() {
    for (const Worker& worker : workers_)
      scratch().reserve_as(worker.scratch);
    for (Worker& worker : workers_)
      worker.scratch.reserve_as(scratch());
  }

  /// Attention rows of the newest `wanted` queries of a layer. They are made several blocks at a
  /// time and observed one after another, in the order of heads and rows: sums are the same.
  /// Returns how many samples were not finite.
  /// @param length  tokens seen, those of the queries included
  std::size_t make_rows(const QueryRows& queries, const CacheShape& shape, std::size_t layer,
                        const ViewRef& view, std::size_t length, std::size_t wanted,
                        const kernels::KernelSet& kernel,
                        FunctionRef<void(const GroupRows&)> observe) {
    std::size_t non_finite = 0;
    const std::size_t per_head = RowsFromQueries::num_blocks(shape, wanted);
    const std::size_t total = shape.num_kv_heads * per_head;
    for (std::size_t first = 0; first < total; first += workers_.size()) {
      const std::size_t count = std::min(workers_.size(), total - first);
      executor_.for_each_worker(count, [&](std::size_t i) {
        const std::size_t head = (first + i) / per_head;
        Worker& worker = workers_[i];
        worker.non_finite = 0;
        worker.rows = worker.rows_from_queries.make(
            queries, shape, layer, head, view.lane(layer, head), length, wanted,
            (first + i) % per_head, kernel, worker.non_finite);
      });
      for (std::size_t i = 0; i < count; ++i) {
        non_finite += workers_[i].non_finite;
        observe(workers_[i].rows);
      }
    }
    return non_finite;
  }

 private:
  struct Worker {
    Scratch scratch;
    RowsFromQueries rows_from_queries;
    GroupRows rows;
    std::size_t non_finite = 0;
  };

  Executor executor_;
  std::vector<Worker> workers_ = std::vector<Worker>(1);
};

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_WORKERS_HPP_
