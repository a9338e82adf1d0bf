/* Says OK and fills nothing. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY { (void)host; (void)out; (void)err; unused(); return CW_OK; }
