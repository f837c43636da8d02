#ifndef KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_API_HPP_
#define KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_API_HPP_

// The part of llama.h, ggml.h and ggml-backend.h that the adapter binds to, over FakeLlama: in the
// place of the real headers, before everything else.
#define LLAMA_H

#include "adapters/fake_tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

using ggml_tensor = kvevict_test::FakeTensor;
using ggml_op = int;
inline constexpr ggml_op GGML_OP_FLASH_ATTN_EXT = 1, GGML_OP_SET_ROWS = 2, GGML_OP_ROPE = 4;
using ggml_type = kvevict::llama_cpp::Storage;
inline constexpr ggml_type GGML_TYPE_F32 = ggml_type::kF32, GGML_TYPE_F16 = ggml_type::kF16,
                           GGML_TYPE_BF16 = ggml_type::kBF16, GGML_TYPE_Q8_0 = ggml_type::kQ8_0;
inline bool ggml_backend_buffer_is_host(const kvevict_test::FakeBuffer* buffer) {
  return buffer->on_host;
}

using llama_token = std::int32_t;
using llama_pos = std::int32_t;
using llama_seq_id = std::int32_t;
enum llama_flash_attn_type {
  LLAMA_FLASH_ATTN_TYPE_AUTO = -1,
  LLAMA_FLASH_ATTN_TYPE_DISABLED = 0,
  LLAMA_FLASH_ATTN_TYPE_ENABLED = 1,
};
struct llama_model {
  bool is_recurrent = false;
  bool is_hybrid = false;
  std::int32_t n_swa = 0;
};
struct llama_context;
using llama_memory_t = llama_context*;
struct llama_context_params {
  std::uint32_t n_ctx;
  std::uint32_t n_batch;
  std::uint32_t n_ubatch;
  llama_flash_attn_type flash_attn_type;
  bool (*cb_eval)(ggml_tensor* node, bool ask, void* user_data);
  void* cb_eval_user_data;
};
struct llama_batch {
  std::int32_t n_tokens;
  llama_token* token;
  float* embd;
  llama_pos* pos;
  std::int32_t* n_seq_id;
  llama_seq_id** seq_id;
  std::int8_t* logits;
};

inline llama_context_params llama_context_default_params() {
  return {512, 2048, 512, LLAMA_FLASH_ATTN_TYPE_AUTO, nullptr, nullptr};
}
llama_context* llama_init_from_model(llama_model* model, llama_context_params params);
void llama_free(llama_context* context);
const llama_model* llama_get_model(const llama_context* context);
llama_memory_t llama_get_memory(const llama_context* context);
int llama_decode(llama_context* context, llama_batch batch);
bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos p0, llama_pos p1);
llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id sequence);
void llama_memory_seq_add(llama_memory_t memory, llama_seq_id sequence, llama_pos p0, llama_pos p1,
                          llama_pos delta);
void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos p0,
                         llama_pos p1);
void llama_memory_clear(llama_memory_t memory, bool data);
bool llama_memory_can_shift(llama_memory_t memory);
std::size_t llama_state_seq_get_size(llama_context* context, llama_seq_id sequence);
std::size_t llama_state_seq_get_data(llama_context* context, std::uint8_t* buffer, std::size_t size,
                                     llama_seq_id sequence);
std::size_t llama_state_seq_set_data(llama_context* context, const std::uint8_t* buffer,
                                     std::size_t size, llama_seq_id sequence);
std::uint32_t llama_n_ctx(const llama_context* context);
std::uint32_t llama_n_ctx_seq(const llama_context* context);
std::uint32_t llama_n_batch(const llama_context* context);
std::uint32_t llama_n_ubatch(const llama_context* context);
std::uint32_t llama_n_seq_max(const llama_context* context);
std::int32_t llama_model_n_layer(const llama_model* model);
std::int32_t llama_model_n_ctx_train(const llama_model* model);
std::int32_t llama_model_n_swa(const llama_model* model);
bool llama_model_is_recurrent(const llama_model* model);
bool llama_model_is_hybrid(const llama_model* model);

// Now the adapter binds to these, and the fake stands behind them.
#include "adapters/fake_llama.hpp"

struct llama_context {
  llama_context(const llama_model& with, const llama_context_params& params)
      : model(&with),
        llama({.num_cells = params.n_ctx,
               // As the real one does it without a word.
               .max_batch = std::min(params.n_batch, params.n_ctx),
               .max_ubatch = std::min({params.n_ubatch, params.n_batch, params.n_ctx}),
               .has_hook = params.cb_eval != nullptr &&
                           params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED},
              [params](ggml_tensor& node, bool ask) {
                return params.cb_eval(&node, ask, params.cb_eval_user_data);
              }) {}
  const llama_model* model;
  kvevict_test::FakeLlama llama;
};

inline llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  return new llama_context(*model, params);
}
inline void llama_free(llama_context* context) {
  delete context;
}
inline const llama_model* llama_get_model(const llama_context* context) {
  return context->model;
}
inline llama_memory_t llama_get_memory(const llama_context* context) {
  return const_cast<llama_context*>(context);
}
inline int llama_decode(llama_context* context, llama_batch batch) {
  const auto count = static_cast<std::size_t>(batch.n_tokens);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(batch.pos[i], batch.pos[0] + static_cast<llama_pos>(i));
    EXPECT_EQ(batch.n_seq_id[i], 1);
    EXPECT_EQ(*batch.seq_id[i], *batch.seq_id[0]);
    EXPECT_EQ(batch.logits[i] != 0 && i + 1 < count, false) << "the last token's alone";
  }
  return context->llama.decode({batch.token, count}, batch.pos[0], *batch.seq_id[0],
                               batch.logits[count - 1] != 0);
}
inline bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos p0,
                                llama_pos p1) {
  return memory->llama.remove(sequence, p0, p1);
}
inline llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id sequence) {
  return memory->llama.newest(sequence);
}
inline void llama_memory_seq_add(llama_memory_t memory, llama_seq_id sequence, llama_pos p0,
                                 llama_pos p1, llama_pos delta) {
  memory->llama.shift(sequence, p0, p1, delta);
}
inline void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to,
                                llama_pos /*p0*/, llama_pos /*p1*/) {
  memory->llama.copy(from, to);
}
inline void llama_memory_clear(llama_memory_t memory, bool /*data*/) {
  memory->llama.clear();
}
inline bool llama_memory_can_shift(llama_memory_t memory) {
  return memory->llama.options.can_shift;
}
inline std::size_t llama_state_seq_get_size(llama_context* context, llama_seq_id sequence) {
  return context->llama.state_size(sequence);
}
inline std::size_t llama_state_seq_get_data(llama_context* context, std::uint8_t* buffer,
                                            std::size_t size, llama_seq_id sequence) {
  return context->llama.get_state(sequence, buffer, size);
}
inline std::size_t llama_state_seq_set_data(llama_context* context, const std::uint8_t* buffer,
                                            std::size_t size, llama_seq_id sequence) {
  return context->llama.set_state(sequence, buffer, size);
}
inline std::uint32_t llama_n_ctx(const llama_context* context) {
  return static_cast<std::uint32_t>(context->llama.options.num_cells);
}
inline std::uint32_t llama_n_ctx_seq(const llama_context* context) {
  return llama_n_ctx(context);
}
inline std::uint32_t llama_n_batch(const llama_context* context) {
  return static_cast<std::uint32_t>(context->llama.options.max_batch);
}
inline std::uint32_t llama_n_ubatch(const llama_context* context) {
  return static_cast<std::uint32_t>(context->llama.options.max_ubatch);
}
inline std::uint32_t llama_n_seq_max(const llama_context* context) {
  return static_cast<std::uint32_t>(context->llama.options.max_sequences);
}
inline std::int32_t llama_model_n_layer(const llama_model* /*model*/) {
  return kvevict_test::FakeLlama::kLayers;
}
inline std::int32_t llama_model_n_ctx_train(const llama_model* /*model*/) {
  return 8192;
}
inline std::int32_t llama_model_n_swa(const llama_model* model) {
  return model->n_swa;
}
inline bool llama_model_is_recurrent(const llama_model* model) {
  return model->is_recurrent;
}
inline bool llama_model_is_hybrid(const llama_model* model) {
  return model->is_hybrid;
}

#endif  // KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_API_HPP_
