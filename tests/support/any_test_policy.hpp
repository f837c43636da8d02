#ifndef KVEVICT_TESTS_SUPPORT_ANY_TEST_POLICY_HPP_
#define KVEVICT_TESTS_SUPPORT_ANY_TEST_POLICY_HPP_

#include "kvevict/core/executor.hpp"
#include "kvevict/policies/policy.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvevict_test {

/// Any Policy<Method> behind one type, so that tests of what all policies have in common are
/// compiled once. Beside what an engine calls it shows what the policy says of itself.
class AnyTestPolicy {
 public:
  template <class Method>
  explicit AnyTestPolicy(kvevict::Policy<Method> policy)
      : self_(std::make_unique<Model<Method>>(std::move(policy))) {}
  AnyTestPolicy(const AnyTestPolicy& other) : self_(other.self_->clone()) {}
  AnyTestPolicy& operator=(const AnyTestPolicy& other) {
    if (this != &other)
      self_ = other.self_->clone();
    return *this;
  }
  AnyTestPolicy(AnyTestPolicy&&) noexcept = default;
  AnyTestPolicy& operator=(AnyTestPolicy&&) noexcept = default;
  ~AnyTestPolicy() = default;

  void use_executor(const kvevict::Executor& executor) { self_->use_executor(executor); }
  void begin(std::size_t count, std::span<const kvevict::PositionSpan> pinned = {}) {
    self_->begin(count, pinned);
  }
  void append(std::size_t count) { self_->append(count); }
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const {
    return self_->wanted_attention_rows(layer);
  }
  [[nodiscard]] bool wants_hidden(std::size_t layer) const { return self_->wants_hidden(layer); }
  [[nodiscard]] bool wants_cache() const { return self_->wants_cache(); }
  [[nodiscard]] bool wants_scores() const { return self_->wants_scores(); }
  void observe_attention(std::size_t layer, const kvevict::AttentionRows& rows) {
    self_->observe_attention(layer, rows);
  }
  template <kvevict::KvCacheView View>
  void observe_queries(std::size_t layer, const kvevict::QueryRows& queries, const View& view) {
    self_->observe_queries(layer, queries, kvevict::as_view_ref(view));
  }
  void observe_hidden(std::size_t layer, const kvevict::HiddenRows& rows) {
    self_->observe_hidden(layer, rows);
  }
  template <kvevict::KvCacheView View>
  void observe_cache(const View& view) {
    self_->observe_cache(kvevict::as_view_ref(view));
  }
  void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                      std::size_t first_slot = 0) {
    self_->observe_scores(layer, kv_head, scores, first_slot);
  }
  template <kvevict::KvCacheView View>
  void end_prefill(const View& view) {
    self_->end_prefill(kvevict::as_view_ref(view));
  }
  [[nodiscard]] bool should_evict() const { return self_->should_evict(); }
  template <kvevict::KvCacheView View>
  [[nodiscard]] const kvevict::KeepMask& select(const View& view) const {
    return self_->select(kvevict::as_view_ref(view));
  }
  template <kvevict::KvCacheView View>
  [[nodiscard]] const kvevict::KeepMask& select(const View& view,
                                                kvevict::Projection& projection) const {
    return self_->select(kvevict::as_view_ref(view), projection);
  }
  void apply(const kvevict::KeepMask& mask) { self_->apply(mask); }
  void truncate(std::size_t length) { self_->truncate(length); }
  void reset() { self_->reset(); }
  [[nodiscard]] const kvevict::Counters& counters() const { return self_->counters(); }

  [[nodiscard]] std::string name() const { return self_->name(); }
  [[nodiscard]] kvevict::Inputs required_inputs() const { return self_->required_inputs(); }
  [[nodiscard]] kvevict::AttentionUse attention_use() const { return self_->attention_use(); }
  [[nodiscard]] const kvevict::Sequence& sequence() const { return self_->sequence(); }
  [[nodiscard]] std::size_t length() const { return sequence().length(); }
  [[nodiscard]] kvevict::Trigger trigger() const { return self_->trigger(); }
  [[nodiscard]] kvevict::Protection protection() const { return self_->protection(); }
  [[nodiscard]] kvevict::Allocation allocation() const { return self_->allocation(); }

 private:
  struct Interface {
    Interface() = default;
    Interface(const Interface&) = default;
    Interface& operator=(const Interface&) = delete;
    virtual ~Interface() = default;
    virtual std::unique_ptr<Interface> clone() const = 0;
    virtual void use_executor(const kvevict::Executor& executor) = 0;
    virtual void begin(std::size_t count, std::span<const kvevict::PositionSpan> pinned) = 0;
    virtual void append(std::size_t count) = 0;
    virtual std::size_t wanted_attention_rows(std::size_t layer) const = 0;
    virtual bool wants_hidden(std::size_t layer) const = 0;
    virtual bool wants_cache() const = 0;
    virtual bool wants_scores() const = 0;
    virtual void observe_scores(std::size_t layer, std::size_t kv_head,
                                std::span<const float> scores, std::size_t first_slot) = 0;
    virtual void observe_attention(std::size_t layer, const kvevict::AttentionRows& rows) = 0;
    virtual void observe_queries(std::size_t layer, const kvevict::QueryRows& queries,
                                 const kvevict::ViewRef& view) = 0;
    virtual void observe_hidden(std::size_t layer, const kvevict::HiddenRows& rows) = 0;
    virtual void observe_cache(const kvevict::ViewRef& view) = 0;
    virtual void end_prefill(const kvevict::ViewRef& view) = 0;
    virtual bool should_evict() const = 0;
    virtual const kvevict::KeepMask& select(const kvevict::ViewRef& view) const = 0;
    virtual const kvevict::KeepMask& select(const kvevict::ViewRef& view,
                                            kvevict::Projection& projection) const = 0;
    virtual void apply(const kvevict::KeepMask& mask) = 0;
    virtual void truncate(std::size_t length) = 0;
    virtual void reset() = 0;
    virtual const kvevict::Counters& counters() const = 0;
    virtual std::string name() const = 0;
    virtual kvevict::Inputs required_inputs() const = 0;
    virtual kvevict::AttentionUse attention_use() const = 0;
    virtual const kvevict::Sequence& sequence() const = 0;
    virtual kvevict::Trigger trigger() const = 0;
    virtual kvevict::Protection protection() const = 0;
    virtual kvevict::Allocation allocation() const = 0;
  };

  template <class Method>
  struct Model final : Interface {
    using P = kvevict::Policy<Method>;

    explicit Model(P p) : policy(std::move(p)) {}
    std::unique_ptr<Interface> clone() const override { return std::make_unique<Model>(*this); }
    void use_executor(const kvevict::Executor& executor) override { policy.use_executor(executor); }
    void begin(std::size_t count, std::span<const kvevict::PositionSpan> pinned) override {
      policy.begin(count, pinned);
    }
    void append(std::size_t count) override { policy.append(count); }
    std::size_t wanted_attention_rows(std::size_t layer) const override {
      return policy.wanted_attention_rows(layer);
    }
    bool wants_hidden(std::size_t layer) const override { return policy.wants_hidden(layer); }
    bool wants_cache() const override { return policy.wants_cache(); }
    bool wants_scores() const override { return policy.wants_scores(); }
    void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                        std::size_t first_slot) override {
      if constexpr (requires { policy.observe_scores(layer, kv_head, scores, first_slot); }) {
        policy.observe_scores(layer, kv_head, scores, first_slot);
      } else {
        throw std::logic_error("wants no scores");
      }
    }
    void observe_attention(std::size_t layer, const kvevict::AttentionRows& rows) override {
      if constexpr (requires { policy.observe_attention(layer, rows); }) {
        policy.observe_attention(layer, rows);
      } else {
        throw std::logic_error("wants no attention");
      }
    }
    void observe_queries(std::size_t layer, const kvevict::QueryRows& queries,
                         const kvevict::ViewRef& view) override {
      if constexpr (requires { policy.observe_queries(layer, queries, view); }) {
        policy.observe_queries(layer, queries, view);
      } else {
        throw std::logic_error("wants no attention");
      }
    }
    void observe_hidden(std::size_t layer, const kvevict::HiddenRows& rows) override {
      if constexpr (requires { policy.observe_hidden(layer, rows); }) {
        policy.observe_hidden(layer, rows);
      } else {
        throw std::logic_error("wants no hidden states");
      }
    }
    void observe_cache(const kvevict::ViewRef& view) override { policy.observe_cache(view); }
    void end_prefill(const kvevict::ViewRef& view) override { policy.end_prefill(view); }
    bool should_evict() const override { return policy.should_evict(); }
    const kvevict::KeepMask& select(const kvevict::ViewRef& view) const override {
      return policy.select(view);
    }
    const kvevict::KeepMask& select(const kvevict::ViewRef& view,
                                    kvevict::Projection& projection) const override {
      return policy.select(view, projection);
    }
    void apply(const kvevict::KeepMask& mask) override { policy.apply(mask); }
    void truncate(std::size_t length) override { policy.truncate(length); }
    void reset() override { policy.reset(); }
    const kvevict::Counters& counters() const override { return policy.counters(); }
    std::string name() const override { return std::string(P::kName); }
    kvevict::Inputs required_inputs() const override { return P::kRequiredInputs; }
    kvevict::AttentionUse attention_use() const override { return P::kAttentionUse; }
    const kvevict::Sequence& sequence() const override { return policy.sequence(); }
    kvevict::Trigger trigger() const override { return policy.method().trigger(); }
    kvevict::Protection protection() const override {
      return policy.method().protection(policy.sequence());
    }
    kvevict::Allocation allocation() const override {
      return policy.method().allocation(policy.sequence());
    }

    P policy;
  };

  std::unique_ptr<Interface> self_;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_ANY_TEST_POLICY_HPP_
