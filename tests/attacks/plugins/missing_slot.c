/* One mandatory slot is NULL. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY { (void)host; (void)err; device.copy_2d = NULL; return answer(out, device_only); }
