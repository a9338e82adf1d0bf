/* The record's texts have no end, are not UTF-8 and the flags are of another age. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY {
  (void)host; (void)out;
  unused();
  memset(err, 0xFF, sizeof *err);
  err->code = CW_E_INTERNAL;
  return CW_E_INTERNAL;
}
