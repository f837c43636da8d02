#ifndef KVEVICT_CORE_PROTECTION_HPP_
#define KVEVICT_CORE_PROTECTION_HPP_

#include "kvevict/config.hpp"

#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// What stays whatever its score: ranges, never a large score (rule R5). Only valid slots count,
/// so a sink is the first valid slot. Pinned spans come on top of it, with `begin`.
///
/// Where the budget is too small for all of it, spans and prompt stay and the budget is reported
/// as not reachable; the recent window then gets what is left, newest first, and the sinks after
/// it, oldest first.
struct Protection {
  std::size_t num_sink_tokens = 0;
  std::size_t recent_window = 0;
  bool prompt = false;            ///< every token of every prompt
  bool after_prompt = false;      ///< every token after the newest prompt, on top of the budget
  std::size_t plan_tokens = 0;    ///< with `prompt`: so many tokens behind each prompt, too
  bool prompt_gives_way = false;  ///< with `prompt`: only what the budget has room for beside the
                                  ///< recent window and one more token, oldest first
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_PROTECTION_HPP_
