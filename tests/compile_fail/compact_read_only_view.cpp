// Only a view that grants writing can be compacted.
// expected: (constraint|MutableKvCacheView|mutable_lane)
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#ifdef KVEVICT_MUST_NOT_COMPILE
class ReadOnlyView {
 public:
  explicit ReadOnlyView(const kvevict::views::ContiguousView& view) : view_(view) {}
  [[nodiscard]] const kvevict::CacheShape& shape() const noexcept { return view_.shape(); }
  [[nodiscard]] kvevict::Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return view_.lane(layer, kv_head);
  }

 private:
  kvevict::views::ContiguousView view_;
};
#else
using ReadOnlyView = kvevict::views::ContiguousView;
#endif

void evict(const ReadOnlyView& view, const kvevict::KeepMask& mask) {
  kvevict::compact(view, mask);
}
