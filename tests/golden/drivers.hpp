#ifndef KVEVICT_TESTS_GOLDEN_DRIVERS_HPP_
#define KVEVICT_TESTS_GOLDEN_DRIVERS_HPP_

#include "support/golden.hpp"

#include <string>

namespace kvevict_test {

// One driver for each `text policy`: runs the library over a case and reports what it compared and
// of which policies. An option that a driver asks for in none of its cases fails the test, and so
// does a policy that no case is of.

void run_adakv(const GoldenCase& golden, GoldenReport& report);
void run_allocation_tables(const GoldenCase& golden, GoldenReport& report);
void run_cake(const GoldenCase& golden, GoldenReport& report);
void run_duo_attention(const GoldenCase& golden, GoldenReport& report);
void run_ahakv(const GoldenCase& golden, GoldenReport& report);
void run_caote(const GoldenCase& golden, GoldenReport& report);
void run_criticaladakv(const GoldenCase& golden, GoldenReport& report);
void run_criticalkv(const GoldenCase& golden, GoldenReport& report);
void run_block(const GoldenCase& golden, GoldenReport& report);
void run_capkv(const GoldenCase& golden, GoldenReport& report);
void run_chunk(const GoldenCase& golden, GoldenReport& report);
void run_chunkkv(const GoldenCase& golden, GoldenReport& report);
void run_compactor(const GoldenCase& golden, GoldenReport& report);
void run_cur(const GoldenCase& golden, GoldenReport& report);
void run_decoding(const GoldenCase& golden, GoldenReport& report);
void run_dms(const GoldenCase& golden, GoldenReport& report);
void run_ema(const GoldenCase& golden, GoldenReport& report);
void run_entropy_gated_chunkkv(const GoldenCase& golden, GoldenReport& report);
void run_epikv(const GoldenCase& golden, GoldenReport& report);
void run_expected_attention(const GoldenCase& golden, GoldenReport& report);
void run_finch(const GoldenCase& golden, GoldenReport& report);
void run_h2o(const GoldenCase& golden, GoldenReport& report);
void run_inertiakv(const GoldenCase& golden, GoldenReport& report);
void run_inertiakv_budget(const GoldenCase& golden, GoldenReport& report);
void run_key_rerotation(const GoldenCase& golden, GoldenReport& report);
void run_keydiff(const GoldenCase& golden, GoldenReport& report);
void run_knorm(const GoldenCase& golden, GoldenReport& report);
void run_kvcompose(const GoldenCase& golden, GoldenReport& report);
void run_kvzip(const GoldenCase& golden, GoldenReport& report);
void run_lagkv(const GoldenCase& golden, GoldenReport& report);
void run_laprox(const GoldenCase& golden, GoldenReport& report);
void run_lukv(const GoldenCase& golden, GoldenReport& report);
void run_merging(const GoldenCase& golden, GoldenReport& report);
void run_per_layer(const GoldenCase& golden, GoldenReport& report);
void run_pyramidkv(const GoldenCase& golden, GoldenReport& report);
void run_pyramidkv_budgets(const GoldenCase& golden, GoldenReport& report);
void run_longflow(const GoldenCase& golden, GoldenReport& report);
void run_raas(const GoldenCase& golden, GoldenReport& report);
void run_rkv(const GoldenCase& golden, GoldenReport& report);
void run_scissorhands(const GoldenCase& golden, GoldenReport& report);
void run_leverage(const GoldenCase& golden, GoldenReport& report);
void run_noncausal(const GoldenCase& golden, GoldenReport& report);
void run_observed_attention(const GoldenCase& golden, GoldenReport& report);
void run_qfilter(const GoldenCase& golden, GoldenReport& report);
void run_selection_global(const GoldenCase& golden, GoldenReport& report);
void run_selection_topk(const GoldenCase& golden, GoldenReport& report);
void run_simlayerkv(const GoldenCase& golden, GoldenReport& report);
void run_snapkv(const GoldenCase& golden, GoldenReport& report);
void run_streaming_llm(const GoldenCase& golden, GoldenReport& report);
void run_tova(const GoldenCase& golden, GoldenReport& report);
void run_triattention(const GoldenCase& golden, GoldenReport& report);
void run_adaptive_rkv(const GoldenCase& golden, GoldenReport& report);
void run_aggregated_tova(const GoldenCase& golden, GoldenReport& report);
void run_epikv_ablations(const GoldenCase& golden, GoldenReport& report);
void run_vase(const GoldenCase& golden, GoldenReport& report);
void run_twinkv(const GoldenCase& golden, GoldenReport& report);
void run_nestedkv(const GoldenCase& golden, GoldenReport& report);
void run_thinkv(const GoldenCase& golden, GoldenReport& report);
void run_block_eviction(const GoldenCase& golden, GoldenReport& report);
void run_fastgen(const GoldenCase& golden, GoldenReport& report);
void run_keyformer(const GoldenCase& golden, GoldenReport& report);
void run_vatp(const GoldenCase& golden, GoldenReport& report);
void run_dropkv(const GoldenCase& golden, GoldenReport& report);
void run_defensivekv(const GoldenCase& golden, GoldenReport& report);
void run_evolkv(const GoldenCase& golden, GoldenReport& report);
void run_headkv(const GoldenCase& golden, GoldenReport& report);
void run_rocketkv(const GoldenCase& golden, GoldenReport& report);
void run_mean_centred_norm(const GoldenCase& golden, GoldenReport& report);
void run_aggregated_keydiff(const GoldenCase& golden, GoldenReport& report);
void run_dms_qfilters(const GoldenCase& golden, GoldenReport& report);
void run_kvzap(const GoldenCase& golden, GoldenReport& report);
void run_external_scores(const GoldenCase& golden, GoldenReport& report);
void run_random_eviction(const GoldenCase& golden, GoldenReport& report);
void run_random_attention(const GoldenCase& golden, GoldenReport& report);
void run_raas_bounds(const GoldenCase& golden, GoldenReport& report);
void run_triattention_online(const GoldenCase& golden, GoldenReport& report);

/// Cases of a real model: `path` is its GGUF file.
void run_model(const GoldenCase& golden, GoldenReport& report, const std::string& path);

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_DRIVERS_HPP_
