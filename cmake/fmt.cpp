// The part of {fmt} that needs no template, compiled once. Used header-only, it takes a second of
// every object.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
// Its namespace depends on the version of {fmt}, so that it cannot be instantiated by name.
[[gnu::used]] static const auto kLocaleOf = &locale_ref::get<std::locale>;

}  // namespace detail
FMT_END_NAMESPACE
