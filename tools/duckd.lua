-- duckd.lua: Wireshark dissector of the protocol between host and ducks (duck/wire.h, docs/protocol.md).
-- Use: wireshark -X lua_script:tools/duckd.lua, or put it into the personal plugins folder.
-- Tags are shown, not checked: that needs the flock key.

local duckd = Proto("duckd", "duckd flock protocol")

local types = {
  "DISCOVER", "HELLO", "OPEN", "OPENED", "REFUSED", "CLOSE", "CLOSED", "PING", "PONG", "PUT", "PUT_ACK", "UNITS",
  "UNIT_HASHES", "STEP", "STEP_ACK", "RESULT", "DONE", "RESEND", "STATS", "STATS_REPLY", "KAT", "KAT_REPLY", "LOG",
  "LOG_REPLY", "FAULT", "POWER", "POWER_ACK",
}
local objects = { [0] = "program", "plan", "unit" }
local put_status = { [0] = "partial", "received", "held", "no room", "refused" }
local put_reasons = { [0] = "-", "bad object", "bad hash", "bad plan", "no memory", "bad weight", "bad scale", "bad program" }
local step_status = { [0] = "queued", "not ready", "bad" }
local refusals = { "busy", "bad version", "bad nonce", "bad field", "no program", "no memory" }
local dtypes = { [0] = "f32", "bf16", "fp8" }

local f = {}

local function field(kind, name, label, base, values)
  f[name] = ProtoField[kind]("duckd." .. name, label, base, values)
end

field("uint8", "version", "Version", base.DEC)
field("uint8", "type", "Type", base.DEC, types)
field("uint16", "length", "Payload length", base.DEC)
field("uint32", "session", "Session", base.HEX)
field("uint32", "sequence", "Sequence", base.DEC)
field("uint16", "fragment", "Fragment", base.DEC)
field("uint16", "fragments", "Fragments", base.DEC)
field("uint16", "source", "Source", base.HEX)
field("uint16", "flags", "Flags", base.HEX)
field("uint64", "tag", "Tag", base.HEX)
field("bytes", "payload", "Payload")
field("bytes", "bitmap", "Bitmap")
field("bytes", "nonce", "Nonce")
field("string", "text", "Text")

-- Layouts: { offset, bytes, name, label, kind, values }.
local layouts = {
  HELLO = {
    { 0, 16, "nonce" }, { 16, 6, "hello.mac", "MAC", "ether" }, { 22, 2, "hello.cores", "Cores" },
    { 24, 4, "hello.version", "Protocol version" }, { 28, 4, "hello.features", "Features" },
    { 32, 8, "hello.memory_total", "Memory" }, { 40, 8, "hello.memory_free", "Memory for weights and steps" },
    { 48, 8, "hello.boot_id", "Boot id" }, { 56, 8, "hello.tsc_hz", "TSC Hz" },
    { 64, 8, "hello.read", "Read bandwidth, bytes/s" }, { 72, 8, "hello.firmware_hash", "Firmware hash" },
    { 80, 8, "hello.plan_hash", "Plan hash" }, { 88, 4, "hello.link", "Link Mb/s" },
    { 92, 4, "hello.largest_payload", "Largest payload" }, { 96, 4, "hello.holder_session", "Holder's session" },
    { 100, 4, "hello.holder_address", "Holder's address" }, { 104, 32, "hello.name", "Name", "string" },
    { 136, 48, "hello.cpu", "CPU", "string" }, { 184, 24, "hello.firmware", "Firmware", "string" },
  },
  OPEN = {
    { 0, 16, "nonce" }, { 16, 16, "nonce" }, { 32, 4, "open.session", "New session" }, { 36, 2, "open.duck", "Duck" },
    { 38, 2, "open.payload", "Payload" }, { 40, 4, "open.lease", "Lease, ms" }, { 44, 4, "open.gap", "Gap, us" },
    { 48, 4, "open.max_tokens", "Most tokens" }, { 52, 2, "open.max_top_k", "Most experts per token" },
    { 54, 2, "open.slots", "Step slots" }, { 56, 8, "open.plan_hash", "Plan hash" },
    { 64, 8, "open.program_hash", "Program hash" }, { 72, 4, "open.address", "Host's address" },
    { 76, 2, "open.port", "Host's port" }, { 78, 1, "open.element_bytes", "Largest element" },
    { 79, 1, "open.in_turn", "No overlap" },
  },
  OPENED = {
    { 0, 1, "opened.plan", "Plan held" }, { 1, 1, "opened.program", "Program held" }, { 4, 4, "opened.units", "Units" },
    { 8, 4, "opened.held", "Units held" }, { 12, 4, "opened.slots", "Staging slots" },
    { 16, 8, "opened.root", "Root hash" }, { 24, 8, "opened.boot_id", "Boot id" }, { 32, 8, "opened.free", "Memory" },
  },
  REFUSED = {
    { 0, 4, "refused.reason", "Reason", nil, refusals }, { 4, 4, "refused.session", "Session refused" },
    { 8, 8, "refused.value", "Value" }, { 16, 4, "refused.holder", "Holder's session" },
    { 20, 4, "refused.address", "Holder's address" }, { 24, 4, "refused.remaining", "Lease left, ms" },
  },
  PUT = {
    { 0, 4, "put.kind", "Kind", nil, objects }, { 4, 4, "put.object", "Object" }, { 8, 4, "put.total", "Total bytes" },
    { 12, 4, "put.offset", "Offset" }, { 16, 8, "put.hash", "Hash" },
  },
  PUT_ACK = {
    { 0, 4, "ack.kind", "Kind", nil, objects }, { 4, 4, "ack.object", "Object" },
    { 8, 4, "ack.status", "Status", nil, put_status }, { 12, 4, "ack.reason", "Reason", nil, put_reasons },
    { 16, 4, "ack.cumulative", "Bytes without a gap" }, { 20, 4, "ack.free", "Free slots" },
    { 24, 8, "ack.hash", "Hash" }, { 32, 8, "ack.value", "Value" }, { 40, 8, "ack.available", "Available" },
    { 48, 64, "bitmap" },
  },
  UNITS = { { 0, 4, "units.first", "First" }, { 4, 4, "units.count", "Count" } },
  UNIT_HASHES = {
    { 0, 4, "hashes.first", "First" }, { 4, 4, "hashes.count", "Count" }, { 8, 4, "hashes.units", "Units" },
    { 12, 4, "hashes.held", "Units held" }, { 16, 4, "hashes.slots", "Staging slots" }, { 24, 8, "hashes.root", "Root hash" },
  },
  STEP = { -- of fragment 0 only
    { 0, 4, "step.bank", "Bank" }, { 4, 4, "step.tokens", "Tokens" }, { 8, 4, "step.top_k", "Experts per token" },
    { 12, 1, "step.activation", "Activation", nil, dtypes }, { 13, 1, "step.result", "Result", nil, dtypes },
    { 14, 2, "step.lane", "Lane" }, { 16, 4, "step.bytes", "Bytes of the step" },
  },
  STEP_ACK = {
    { 0, 4, "step_ack.status", "Status", nil, step_status }, { 4, 4, "step_ack.fragments", "Result fragments" },
    { 8, 4, "step_ack.queued", "Steps queued" }, { 12, 4, "step_ack.done", "Done" },
  },
  DONE = {
    { 0, 4, "done.fragments", "Fragments" }, { 4, 4, "done.experts", "Expert reads" }, { 8, 8, "done.bytes", "Bytes read" },
    { 16, 4, "done.receive", "Receive, us" }, { 20, 4, "done.wait", "Wait, us" }, { 24, 4, "done.compute", "Compute, us" },
    { 28, 4, "done.send", "Send, us" },
  },
  RESEND = { { 0, 2, "resend.first", "First" }, { 2, 2, "resend.count", "Count (0: all)" } },
  KAT = { { 0, 8, "kat.seed", "Seed" }, { 8, 8, "kat.hash", "Hash" }, { 16, 4, "kat.compute", "Compute, us" },
          { 20, 4, "kat.format", "Format" } },
  FAULT = {
    { 0, 4, "fault.vector", "Vector" }, { 4, 4, "fault.core", "Core" }, { 8, 8, "fault.error", "Error code" },
    { 16, 8, "fault.rip", "RIP" }, { 24, 8, "fault.rsp", "RSP" }, { 32, 8, "fault.rflags", "RFLAGS" },
    { 40, 8, "fault.cr2", "CR2" }, { 168, 8, "fault.program", "Program's address" },
    { 176, 4, "fault.frames", "Frames of the backtrace" }, { 312, 72, "fault.text", "Text", "string" },
  },
  POWER = { { 0, 16, "nonce" }, { 16, 4, "power.action", "Action", nil, { "reboot", "power off" } } },
}
for i, name in ipairs({ "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15" }) do
  table.insert(layouts.FAULT, { 48 + 8 * (i - 1), 8, "fault." .. name, name:upper() })
end
for i = 0, 15 do
  table.insert(layouts.FAULT, { 184 + 8 * i, 8, "fault.from" .. i, "Backtrace " .. i })
end
layouts.KAT_REPLY = layouts.KAT
layouts.STATS_REPLY = {}
for i, name in ipairs({
  "uptime_us", "frames_in", "bytes_in", "frames_out", "bytes_out", "steps", "expert_reads", "expert_bytes", "compute_us",
  "bad_frame", "bad_tag", "stranger", "duplicate", "late", "unexpected", "resend_asked", "resend_served", "nic_dropped",
  "send_failed", "sessions", "faults", "units_held", "bytes_held",
}) do
  layouts.STATS_REPLY[i] = { 8 * (i - 1), 8, "stats." .. name, name }
end
for _, e in ipairs({
  { 184, 8, "memory_tested" }, { 192, 8, "memory_bad" }, { 200, 4, "care" }, { 204, 4, "start_ms" }, { 208, 4, "core_mhz" },
  { 212, 4, "base_mhz" }, { 216, 2, "celsius" }, { 218, 2, "celsius_most" }, { 220, 4, "power_1_mw" }, { 224, 4, "power_2_mw" },
  { 228, 4, "turbo_mhz" }, { 232, 4, "loaded_mhz" }, { 236, 4, "held_format" },
}) do
  table.insert(layouts.STATS_REPLY, { e[1], e[2], "stats." .. e[3], e[3] })
end

local kinds = { [1] = "uint8", [2] = "uint16", [4] = "uint32", [8] = "uint64" }
for _, layout in pairs(layouts) do
  for _, e in ipairs(layout) do
    local kind = e[5] or kinds[e[2]]
    if not f[e[3]] then
      if kind == "string" or kind == "ether" then
        f[e[3]] = ProtoField[kind]("duckd." .. e[3], e[4])
      else
        field(kind, e[3], e[4], e[2] == 8 and base.HEX_DEC or base.DEC_HEX, e[6])
      end
    end
  end
end

duckd.fields = {}
for _, v in pairs(f) do table.insert(duckd.fields, v) end

local function payload_summary(name, p)
  if name == "PUT" and p:len() >= 24 then
    return string.format(" %s %u at %u of %u", objects[p(0, 4):le_uint()] or "?", p(4, 4):le_uint(), p(12, 4):le_uint(),
      p(8, 4):le_uint())
  elseif name == "PUT_ACK" and p:len() >= 24 then
    return string.format(" %s %u %s, %u", objects[p(0, 4):le_uint()] or "?", p(4, 4):le_uint(),
      put_status[p(8, 4):le_uint()] or "?", p(16, 4):le_uint())
  elseif name == "RESEND" and p:len() >= 8 then
    return string.format(" from %u, %u bits", p(0, 2):le_uint(), p(2, 2):le_uint())
  elseif name == "STEP_ACK" and p:len() >= 16 then
    return " " .. (step_status[p(0, 4):le_uint()] or "?")
  elseif name == "REFUSED" and p:len() >= 4 then
    return " " .. (refusals[p(0, 4):le_uint()] or "?")
  end
  return ""
end

local function is_ours(buffer)
  return buffer:len() >= 32 and buffer(0, 4):string() == "DUCK"
end

function duckd.dissector(buffer, info, root)
  if not is_ours(buffer) then return 0 end
  local name = types[buffer(5, 1):uint()] or "?"
  local length, fragment, fragments = buffer(6, 2):le_uint(), buffer(16, 2):le_uint(), buffer(18, 2):le_uint()
  local tree = root:add(duckd, buffer(), "duckd " .. name)
  tree:add(f.version, buffer(4, 1))
  tree:add(f.type, buffer(5, 1))
  tree:add_le(f.length, buffer(6, 2))
  tree:add_le(f.session, buffer(8, 4))
  tree:add_le(f.sequence, buffer(12, 4))
  tree:add_le(f.fragment, buffer(16, 2))
  tree:add_le(f.fragments, buffer(18, 2))
  tree:add_le(f.source, buffer(20, 2))
  tree:add_le(f.flags, buffer(22, 2))
  tree:add_le(f.tag, buffer(24, 8))
  info.cols.protocol = "DUCKD"
  local text = string.format("%s %u", name, buffer(12, 4):le_uint())
  if fragments > 1 then text = text .. string.format(" [%u/%u]", fragment + 1, fragments) end
  if length ~= buffer:len() - 32 then
    tree:add_expert_info(PI_MALFORMED, PI_ERROR, "length does not agree with the datagram")
    info.cols.info = text .. " (malformed)"
    return buffer:len()
  end
  if length > 0 then
    local p = buffer(32)
    info.cols.info = text .. payload_summary(name, p)
    if name ~= "STEP" or fragment == 0 then
      for _, e in ipairs(layouts[name] or {}) do
        if e[1] + e[2] <= p:len() then
          local range = p(e[1], e[2])
          if e[5] == "string" then -- up to its zero, which may be missing
            tree:add(f[e[3]], range, range:bytes():raw():match("^[^%z]*"))
          elseif e[3] == "nonce" or e[3] == "bitmap" or e[5] then
            tree:add(f[e[3]], range)
          else
            tree:add_le(f[e[3]], range)
          end
        end
      end
    end
    if name == "RESEND" and p:len() > 8 then tree:add(f.bitmap, p(8)) end
    if name == "LOG_REPLY" then tree:add(f.text, p) else tree:add(f.payload, p) end
  else
    info.cols.info = text
  end
  return buffer:len()
end

local ports = DissectorTable.get("udp.port")
ports:add(21210, duckd)
ports:add(21211, duckd)
duckd:register_heuristic("udp", function(buffer, info, root)
  if not is_ours(buffer) then return false end
  duckd.dissector(buffer, info, root)
  return true
end)
