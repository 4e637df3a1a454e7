// Chat messages as clients send them, checked and brought into the form templates know.
//
// role: system, user, assistant, tool; developer becomes system, function becomes tool; anything
// else is refused. content: always a string: parts of type text are joined without a separator,
// null and absent become "" where they are allowed (assistant). Arguments of tool calls that are
// JSON objects in a string become objects, as templates expect. Members kept: role, content, name,
// tool_calls, tool_call_id, reasoning_content.
#pragma once

#include "base/status.h"
#include "server/json_reader.h"

namespace kvasir {

// kInvalidArgument with a field() such as "messages[2].content".
Result<Json> NormaliseMessages(const Json& messages);

}  // namespace kvasir
