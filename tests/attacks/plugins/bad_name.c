/* Its name is not UTF-8. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY {
  static const cw_str name = STR("\xff\xfe");
  (void)host; (void)err;
  cw_status s = answer(out, device_only);
  out->name = name;
  return s;
}
