/* The entry fails with a reason and a vendor code. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY {
  (void)host; (void)out;
  unused();
  err->code = CW_E_INTERNAL;
  err->vendor_code = 35;
  strcpy(err->message, "driver too old");
  return CW_E_INTERNAL;
}
