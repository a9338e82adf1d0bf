/* The entry fails with a status of nobody and leaves the record as it was. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
ENTRY { (void)host; (void)out; (void)err; unused(); return -77; }
