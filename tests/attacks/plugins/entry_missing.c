/* A manifest, no entry. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
CW_EXPORT void crossweave_plugin_v2(void);
void crossweave_plugin_v2(void) { unused(); }
