/* Needs a host of minor 7. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY {
  (void)host; (void)err;
  cw_status s = answer(out, device_only);
  out->abi_minor = 9;
  out->min_host_minor = 7;
  return s;
}
