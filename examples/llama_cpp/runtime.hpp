#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_

// llama.h comes first: the adapter binds to it where it is known.
// clang-format off
#include <llama.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
// clang-format on

#include "kvevict/adapters/llama_cpp.hpp"
#include "kvevict/make_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// llama.cpp behind owners, and the policies that the example runs in it.
namespace llama_example {

using kvevict::AnyPolicy;
using kvevict::llama_cpp::Token;
using Engine = kvevict::llama_cpp::Engine<kvevict::llama_cpp::Context>;
using Session = kvevict::llama_cpp::Session<AnyPolicy, kvevict::llama_cpp::Context>;

/// Few of all, so that the example is compiled soon; NamedPolicies would do as well.
using Policies =
    kvevict::PolicyList<kvevict::FullKV, kvevict::RandomEviction, kvevict::StreamingLLM,
                        kvevict::SnapKV, kvevict::TOVA, kvevict::Knorm, kvevict::KeyDiff>;

class Model {
 public:
  explicit Model(const std::string& path) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR)
            std::fputs(text, stderr);
        },
        nullptr);
    model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    if (!model_)
      throw std::runtime_error(path + ": llama.cpp cannot load it");
  }
  [[nodiscard]] llama_model* get() const noexcept { return model_.get(); }
  [[nodiscard]] std::size_t num_tokens() const {
    return static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
  }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  std::unique_ptr<llama_model, Free> model_;
};

struct ContextSize {
  std::uint32_t num_cells = 2048;
  std::uint32_t num_sequences = 1;
  std::int32_t num_threads = 1;
  ggml_type cache_type = GGML_TYPE_F16;
};

/// A context with flash attention, its hook and the adapter's engine. Stays where it is.
class Runtime {
 public:
  Runtime(const Model& model, const ContextSize& size) : num_tokens_(model.num_tokens()) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = size.num_cells;
    params.n_batch = 512;
    params.n_ubatch = 512;
    params.n_seq_max = size.num_sequences;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = size.num_threads;
    params.type_k = params.type_v = size.cache_type;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    // Without a tap: cb_eval = kvevict::llama_cpp::eval_callback, cb_eval_user_data = &hook_.
    params.cb_eval = [](ggml_tensor* node, bool ask, void* self) {
      return static_cast<Runtime*>(self)->on_node(node, ask);
    };
    params.cb_eval_user_data = this;
    // Without a pool of its own ggml starts threads for every node that is asked for.
    ggml_threadpool_params pool = ggml_threadpool_params_default(size.num_threads);
    pool_.reset(ggml_threadpool_new(&pool));
    context_.reset(llama_init_from_model(model.get(), params));
    if (!context_)
      throw std::runtime_error("llama.cpp cannot make a context");
    llama_attach_threadpool(context_.get(), pool_.get(), pool_.get());
    engine_ = std::make_unique<Engine>(kvevict::llama_cpp::Context(context_.get()), hook_);
  }

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() = default;

  /// Called with every attention node that ran, while it is set.
  std::function<void(const ggml_tensor& node)> tap;

  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] AnyPolicy make_policy(const std::string& name, const std::string& options) const {
    return kvevict::make_policy<Policies>(name, options, {.shape = engine_->shape()});
  }
  /// Of the token that was fed last.
  [[nodiscard]] std::span<const float> logits() {
    return {llama_get_logits_ith(context_.get(), -1), num_tokens_};
  }
  [[nodiscard]] Token greedy() {
    const auto row = logits();
    return static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  /// -log of the probability that the model gave to `token`.
  [[nodiscard]] double surprise(Token token) {
    const auto row = logits();
    const float highest = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (const float logit : row)
      sum += std::exp(static_cast<double>(logit - highest));
    return std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(token)] - highest);
  }

 private:
  bool on_node(ggml_tensor* node, bool ask) {
    const bool wanted = kvevict::llama_cpp::eval_callback(node, ask, &hook_);
    if (!tap || node->op != GGML_OP_FLASH_ATTN_EXT)
      return wanted;
    if (!ask)
      tap(*node);
    return true;
  }

  struct FreePool {
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
  };
  struct FreeContext {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::size_t num_tokens_;
  kvevict::llama_cpp::Hook hook_;
  std::unique_ptr<ggml_threadpool, FreePool> pool_;  // outlives the context
  std::unique_ptr<llama_context, FreeContext> context_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_
