/* Linked against something that is not there. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
extern int no_such_vendor_function(void);
ENTRY { (void)host; (void)err; no_such_vendor_function(); return answer(out, device_only); }
