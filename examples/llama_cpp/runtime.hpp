#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_

// llama.h comes first: the adapter binds to it where it is known.
// clang-format off
#include <llama.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
// clang-format on

#include "engine/gguf.hpp"
#include "engine/policies.hpp"
#include "engine/sampler.hpp"
#include "engine/tokenizer.hpp"
#include "kvevict/adapters/llama_cpp.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/scoring/query_statistics.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// llama.cpp behind owners, and what all modes of the example share.
namespace llama_example {

using kvevict::AnyPolicy;
using kvevict::llama_cpp::SavedCache;
using kvevict::llama_cpp::SessionOptions;
using kvevict::llama_cpp::Token;
using Engine = kvevict::llama_cpp::Engine<kvevict::llama_cpp::Context>;
using Session = kvevict::llama_cpp::Session<AnyPolicy, kvevict::llama_cpp::Context>;
using Tokens = std::vector<Token>;

/// Options that every mode has.
struct Common {
  std::string model;
  std::string text;  ///< a file, for the modes that read much of it
  std::string json;
  std::int32_t num_threads = 1;
};

/// The tokenizer of the example engine, which writes the trials too.
struct Text {
  explicit Text(const std::string& path) : file(engine::GgufFile::open(path)), tokenizer(file) {}
  engine::GgufFile file;
  engine::Tokenizer tokenizer;
};

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

/// Threads of llama.cpp that contexts share. Without them ggml starts new ones for every node that
/// is asked for; they poll, so contexts that run in turn had better not have some each.
class Threads {
 public:
  explicit Threads(std::int32_t count) : count_(count) {
    ggml_threadpool_params params = ggml_threadpool_params_default(count);
    pool_.reset(ggml_threadpool_new(&params));
  }
  [[nodiscard]] std::int32_t count() const noexcept { return count_; }
  [[nodiscard]] ggml_threadpool* get() const noexcept { return pool_.get(); }

 private:
  struct Free {
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
  };
  std::int32_t count_;
  std::unique_ptr<ggml_threadpool, Free> pool_;
};

struct ContextSize {
  std::uint32_t num_cells = 2048;
  std::uint32_t num_sequences = 1;
  ggml_type cache_type = GGML_TYPE_F16;
};

/// A context with flash attention, its hook and the adapter's engine. Stays where it is; `threads`
/// outlive it.
class Runtime {
 public:
  Runtime(const Model& model, const Threads& threads, const ContextSize& size)
      : num_tokens_(model.num_tokens()) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = size.num_cells;
    params.n_batch = 512;
    params.n_ubatch = 512;
    params.n_seq_max = size.num_sequences;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = threads.count();
    params.type_k = params.type_v = size.cache_type;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    // Without a tap: cb_eval = kvevict::llama_cpp::eval_callback, cb_eval_user_data = &hook_.
    params.cb_eval = [](ggml_tensor* node, bool ask, void* self) {
      return static_cast<Runtime*>(self)->on_node(node, ask);
    };
    params.cb_eval_user_data = this;
    context_.reset(llama_init_from_model(model.get(), params));
    if (!context_)
      throw std::runtime_error("llama.cpp cannot make a context");
    llama_attach_threadpool(context_.get(), threads.get(), threads.get());
    engine_ = std::make_unique<Engine>(kvevict::llama_cpp::Context(context_.get()), hook_);
  }

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() = default;

  /// Called with every attention node that ran, while it is set.
  std::function<void(const ggml_tensor& node)> tap;

  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] std::size_t num_layers() const noexcept { return engine_->shape().num_layers; }
  /// @param statistics  of queries, for policies that do not gather their own
  [[nodiscard]] AnyPolicy make_policy(
      const std::string& name, const std::string& options,
      std::shared_ptr<const kvevict::QueryStatistics> statistics = nullptr) const {
    kvevict::ModelInfo info{.shape = engine_->shape(),
                            .supplied = kvevict::Inputs::kAttention |
                                        kvevict::Inputs::kHiddenStates | kvevict::Inputs::kKeys |
                                        kvevict::Inputs::kValues};
    if (engine_->has_rotary())
      info.rotary = engine_->rotary();
    info.query_statistics = std::move(statistics);
    return engine::make_policy(name, options, info);
  }
  /// Of the token that was fed last.
  [[nodiscard]] Eigen::Map<const Eigen::RowVectorXf> logits() {
    return {llama_get_logits_ith(context_.get(), -1), static_cast<Eigen::Index>(num_tokens_)};
  }
  [[nodiscard]] Token greedy() { return engine::greedy(logits()); }
  /// -ln of the probability that the model gave to `token`.
  [[nodiscard]] double surprise(Token token) { return -engine::log_likelihood(logits(), token); }

 private:
  bool on_node(ggml_tensor* node, bool ask) {
    const bool wanted = kvevict::llama_cpp::eval_callback(node, ask, &hook_);
    if (!tap || node->op != GGML_OP_FLASH_ATTN_EXT)
      return wanted;
    if (!ask)
      tap(*node);
    return true;
  }

  struct Free {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::size_t num_tokens_;
  kvevict::llama_cpp::Hook hook_;
  std::unique_ptr<llama_context, Free> context_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_RUNTIME_HPP_
