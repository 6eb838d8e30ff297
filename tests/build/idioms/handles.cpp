// What may be copied, moved and kept, as the headers say.
#include <exception>
#include <type_traits>

#include <sluice/sluice.h>

template <class T>
constexpr bool handle = std::is_copy_constructible_v<T> && std::is_nothrow_move_constructible_v<T>;

static_assert(handle<sluice::Group> && handle<sluice::Event> && handle<sluice::Route>);
static_assert(std::is_nothrow_move_constructible_v<sluice::Communicator> && std::is_nothrow_move_assignable_v<sluice::Communicator>);
static_assert(std::is_convertible_v<sluice::TensorView, sluice::ConstTensorView>);
static_assert(!std::is_convertible_v<sluice::ConstTensorView, sluice::TensorView>);
static_assert(std::is_base_of_v<sluice::Error, sluice::PeerError> && std::is_base_of_v<std::exception, sluice::Error>);
static_assert(sluice::size_of(sluice::DataType::bf16) == 2 && sluice::size_of(sluice::DataType::fp4x2) == 1);
