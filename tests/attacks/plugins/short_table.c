/* The table ends before its last mandatory slot; what lies behind it must not be read as slots. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY { (void)host; (void)err; device.size = offsetof(cw_device_api, fill); return answer(out, device_only); }
