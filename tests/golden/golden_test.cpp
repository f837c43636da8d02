#include "support/golden.hpp"

#include "golden/drivers.hpp"
#include "kvevict/make_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The library against numbers that independent implementations computed. Any folder of such files
// can be compared: KVEVICT_GOLDEN_DIR in the environment names it.
namespace kvevict_test {
namespace {

/// Who runs a case, by its `text policy`.
const std::map<std::string, GoldenDriver>& drivers() {
  static const std::map<std::string, GoldenDriver> map = {
      {"adakv", run_adakv},
      {"allocation_tables", run_allocation_tables},
      {"cake", run_cake},
      {"duo_attention", run_duo_attention},
      {"ahakv", run_ahakv},
      {"caote", run_caote},
      {"criticaladakv", run_criticaladakv},
      {"criticalkv", run_criticalkv},
      {"block", run_block},
      {"capkv", run_capkv},
      {"chunk", run_chunk},
      {"chunkkv", run_chunkkv},
      {"compactor", run_compactor},
      {"cur", run_cur},
      {"decoding", run_decoding},
      {"dms", run_dms},
      {"ema", run_ema},
      {"entropy_gated_chunkkv", run_entropy_gated_chunkkv},
      {"epikv", run_epikv},
      {"expected_attention", run_expected_attention},
      {"finch", run_finch},
      {"h2o", run_h2o},
      {"inertiakv", run_inertiakv},
      {"inertiakv_budget", run_inertiakv_budget},
      {"key_rerotation", run_key_rerotation},
      {"keydiff", run_keydiff},
      {"knorm", run_knorm},
      {"kvcompose", run_kvcompose},
      {"kvzip", run_kvzip},
      {"lagkv", run_lagkv},
      {"laprox", run_laprox},
      {"lukv", run_lukv},
      {"merging", run_merging},
      {"per_layer", run_per_layer},
      {"pyramidkv", run_pyramidkv},
      {"pyramidkv_budgets", run_pyramidkv_budgets},
      {"longflow", run_longflow},
      {"raas", run_raas},
      {"rkv", run_rkv},
      {"scissorhands", run_scissorhands},
      {"leverage", run_leverage},
      {"noncausal", run_noncausal},
      {"observed_attention", run_observed_attention},
      {"qfilter", run_qfilter},
      {"selection_global", run_selection_global},
      {"selection_topk", run_selection_topk},
      {"simlayerkv", run_simlayerkv},
      {"snapkv", run_snapkv},
      {"streaming_llm", run_streaming_llm},
      {"tova", run_tova},
      {"rocketkv", run_rocketkv},
      {"headkv", run_headkv},
      {"evolkv", run_evolkv},
      {"defensivekv", run_defensivekv},
      {"dropkv", run_dropkv},
      {"vatp", run_vatp},
      {"keyformer", run_keyformer},
      {"fastgen", run_fastgen},
      {"block_eviction", run_block_eviction},
      {"thinkv", run_thinkv},
      {"nestedkv", run_nestedkv},
      {"twinkv", run_twinkv},
      {"vase", run_vase},
      {"epikv_ablations", run_epikv_ablations},
      {"aggregated_tova", run_aggregated_tova},
      {"adaptive_rkv", run_adaptive_rkv},
      {"TriAttention", run_triattention},
      {"triattention_online", run_triattention_online},
      {"mean_centred_norm", run_mean_centred_norm},
      {"aggregated_keydiff", run_aggregated_keydiff},
      {"dms_qfilters", run_dms_qfilters},
      {"kvzap", run_kvzap},
      {"external_scores", run_external_scores},
      {"random_eviction", run_random_eviction},
      {"random_attention", run_random_attention},
      {"raas_bounds", run_raas_bounds},
  };
  return map;
}

/// Cases of a real model: its forward pass, or the tokenizer that comes with it.
bool needs_model(const GoldenCase& golden) {
  return golden.has("model") || (!golden.has("policy") && golden.has("text_0"));
}

/// Records that say where a case comes from, its shape and what its numbers are like; all others
/// are options.
bool describes_case(const std::string& record) {
  return record == "source" || record == "note" || record == "has_attention" ||
         record.starts_with("num_") || record == "head_dim" || record == "hidden_size" ||
         record == "n" || record.ends_with("gap") || record.ends_with("ties");
}

std::vector<std::string> golden_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".txt") {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// What was compared of one kind.
struct Tally {
  std::size_t cases = 0;
  std::size_t records = 0;
  double largest_deviation = 0;
};

/// Policies that no case is of, and why.
const std::map<std::string_view, std::string_view>& policies_without_case() {
  static const std::map<std::string_view, std::string_view> map = {
      {"FullKV", "nothing ever goes, so there is no number to compare"},
  };
  return map;
}

/// Every policy that can be made by name has a case, but for those above.
void expect_all_policies(const std::set<std::string>& covered) {
  std::set<std::string_view> known;
  kvevict::detail::for_each_policy(kvevict::NamedPolicies{}, [&](auto policy) {
    constexpr std::string_view kName = decltype(policy)::type::kName;
    known.insert(kName);
    const bool has_case = covered.count(std::string(kName)) > 0;
    const bool is_excused = policies_without_case().count(kName) > 0;
    EXPECT_TRUE(has_case || is_excused) << kName << " has no golden case";
    EXPECT_FALSE(has_case && is_excused) << kName << " has a golden case by now";
  });
  for (const auto& [name, reason] : policies_without_case())
    EXPECT_EQ(known.count(name), 1U) << "there is no policy " << name << " to excuse";
}

TEST(Golden, AllCasesOfTheFolder) {
  const char* environment = std::getenv("KVEVICT_GOLDEN_DIR");
  const std::string folder = environment != nullptr ? environment : KVEVICT_GOLDEN_DIR;
  const std::vector<std::string> files = golden_files(folder);
  ASSERT_FALSE(files.empty()) << "no *.txt under " << folder;
  std::map<std::string, Tally> tallies;
  std::size_t skipped = 0;
  // What a driver passes over may be without effect in one case; in all of its cases it is not
  // known.
  std::map<std::string, std::set<std::string>> asked;  // by kind
  std::set<std::string> policies;                      // that the cases are of
  struct Option {
    std::string kind, name, path;
  };
  std::vector<Option> unasked;
  for (const std::string& path : files) {
    try {
      const GoldenCase golden = GoldenCase::read(path);
      GoldenReport report(golden);
      std::string kind = "model";
      if (!needs_model(golden)) {
        kind = golden.text("policy");
        const auto driver = drivers().find(kind);
        if (driver == drivers().end())
          throw std::runtime_error("no driver for policy " + kind);
        driver->second(golden, report);
        for (const std::string& option : golden.unasked_options()) {
          if (!describes_case(option))
            unasked.push_back({kind, option, path});
        }
        asked[kind].insert(golden.asked().begin(), golden.asked().end());
      } else if (const char* model = std::getenv("KVEVICT_MODEL"); model != nullptr) {
        run_model(golden, report, model);
      } else {
        std::printf("skipped %s: KVEVICT_MODEL does not name its GGUF file\n", path.c_str());
        ++skipped;
        continue;
      }
      if (report.records() == 0)
        throw std::runtime_error("nothing was compared");
      policies.insert(report.policies().begin(), report.policies().end());
      Tally& tally = tallies[kind];
      ++tally.cases;
      tally.records += report.records();
      tally.largest_deviation = std::max(tally.largest_deviation, report.largest_deviation());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << " (" << path << ')';
    }
  }
  for (const Option& option : unasked) {
    if (asked[option.kind].count(option.name) == 0)
      ADD_FAILURE() << "option " << option.name << " is not known (" << option.path << ')';
  }
  Tally sum;
  for (const auto& [policy, tally] : tallies) {
    std::printf("%-18s %3zu cases %6zu records, largest deviation %.1e of the largest score\n",
                policy.c_str(), tally.cases, tally.records, tally.largest_deviation);
    sum.cases += tally.cases;
    sum.records += tally.records;
  }
  std::printf("%zu cases and %zu records compared, %zu skipped, in %s\n", sum.cases, sum.records,
              skipped, folder.c_str());
  if (environment == nullptr)
    expect_all_policies(policies);
  if (sum.cases == 0 && skipped > 0)
    GTEST_SKIP() << "only cases that run a model";
  EXPECT_GT(sum.cases, 0U);
}

}  // namespace
}  // namespace kvevict_test
