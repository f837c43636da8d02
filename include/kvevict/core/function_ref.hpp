#ifndef KVEVICT_CORE_FUNCTION_REF_HPP_
#define KVEVICT_CORE_FUNCTION_REF_HPP_

#include "kvevict/config.hpp"

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

template <class Signature>
class FunctionRef;

/// A borrowed callable: two pointers, nothing owned. Lets a long function take callbacks without
/// being compiled anew for each of them.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  /// Calls nothing; must not be called.
  FunctionRef() = default;
  /// @param callable  must outlive this
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef> &&
             std::is_invocable_r_v<Result, F&, Args...>)
  // Implicit, as a function's argument is; the constraint keeps it from hiding copies.
  FunctionRef(F&& callable)  // NOLINT
  noexcept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  [[nodiscard]] explicit operator bool() const noexcept { return call_ != nullptr; }
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_ = nullptr;
  Result (*call_)(void*, Args...) = nullptr;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_FUNCTION_REF_HPP_
