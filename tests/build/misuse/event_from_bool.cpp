// expect: (no match|no viable|could not convert|cannot convert|explicit)
// Whether something has happened is asked, not assigned or compared.
#include <sluice/event.h>

bool happened(const sluice::Event& event) {
#ifdef MISUSE
  return event;
#else
  return event.query();
#endif
}
