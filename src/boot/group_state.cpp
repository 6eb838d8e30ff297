#include "boot/group_state.h"

namespace sluice::boot {

Trouble trouble_of(const std::function<void()>& step) {
  Trouble trouble;
  trouble.text.reserve(64);  // to say that there is no memory takes none
  try {
    step();
  } catch (const Error& error) {
    trouble.error = std::current_exception();
    trouble.text = error.what();
  } catch (const std::bad_alloc&) {
    trouble.error = std::make_exception_ptr(Told{std::current_exception()});
    trouble.text = no_memory;
  } catch (const std::exception& error) {
    trouble.error = std::make_exception_ptr(Told{std::current_exception()});
    trouble.text = error.what();
  } catch (...) {
    trouble.error = std::make_exception_ptr(Told{std::current_exception()});
    trouble.text = "an exception of an unknown type";
  }
  return trouble;
}

}  // namespace sluice::boot
