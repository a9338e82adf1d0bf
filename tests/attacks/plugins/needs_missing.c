/* Its vendor library is not installed; opening the plugin first would end the process. */
#include "stub.h"
#include <stdlib.h>
CW_MANIFEST("name=stub;vendor=Attack;needs=libno_such_vendor.so.7|libno_such_vendor.so.6");
__attribute__((constructor)) static void loud(void) { abort(); }
ENTRY { (void)host; (void)err; return answer(out, device_only); }
