# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the BMC modules do: read, plan, apply, verify by observing, all within one deadline.

A module and its action plugin call the same ``run_*`` here and get the same result from it, in
check mode as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..deadline import Deadline
from ..fault import Fault
from ..run_channel import RunChannel
from .interfaces import (
    BOOT_DEVICES,
    BootDriver,
    BootOverride,
    NotYet,
    PowerAction,
    PowerDriver,
    PowerState,
    Unanswered,
)
from .patience import intervals, patiently, pause_after
from .session import Bmc, open_bmc
from .target import Target, bmc_argument_spec

Json = dict[str, Any]
Operation = Callable[..., Json]

# A command whose answer was lost is sent again only when nothing came of it for this long, and
# only one that can be read back.
_RESEND_SECONDS = 10.0
_READ_BACK_SECONDS = 15.0

# What a BMC that is there but not well answers while one looks at it again and again.
_PASSING = frozenset(
    {"BMC_UNREACHABLE", "BMC_BUSY", "BMC_RESOURCE_MISSING", "BMC_ANSWER_MALFORMED"}
    | {"DEADLINE_EXCEEDED"}
)


# -- bmc_power ---------------------------------------------------------------------------------


def power_argument_spec() -> dict[str, Json]:
    """Options of ``bmc_power``."""
    return {
        **bmc_argument_spec(),
        "state": {"type": "str", "required": True, "choices": ["on", "off", "cycled", "reset"]},
        "shutdown": {
            "type": "str",
            "default": "forced",
            "choices": ["forced", "graceful", "graceful_then_forced"],
        },
        "graceful_timeout_seconds": {"type": "int", "default": 120},
    }


@dataclass(frozen=True)
class PowerStep:
    """One command and the state that shows it worked; ``until`` None: nothing can show it."""

    action: PowerAction
    until: PowerState | None


@dataclass
class PowerPlan:
    """What will be sent, and how the machine is shut down where that is part of it."""

    steps: list[PowerStep]
    shutdown_used: str | None = None
    shutdown_reason: str | None = None


@dataclass
class _Watch:
    """A power driver with what is needed to wait for it."""

    power: PowerDriver
    deadline: Deadline
    channel: RunChannel
    settle_seconds: float
    sent: list[str] = field(default_factory=list)

    def look(self) -> tuple[PowerState, str]:
        """The state now; ``unknown`` and the reason while the BMC cannot be read."""
        try:
            return self.power.power_state(), ""
        except NotYet as refusal:
            return "unknown", str(refusal)
        except Fault as fault:
            if fault.code not in _PASSING:
                raise
            return "unknown", fault.message

    def known_state(self) -> PowerState:
        """On or off, as soon as the BMC says so. Raises POWER_STATE_UNKNOWN at the deadline."""
        trouble = ""
        for interval in intervals():
            state, trouble = self.look()
            if state != "unknown":
                return state
            self.deadline.sleep(interval)
            if self.deadline.expired:
                break
        raise Fault(
            "POWER_STATE_UNKNOWN",
            wanted=f"a power state of on or off within {self.deadline.seconds:g} s",
            found=trouble or "the BMC reports neither",
        )


def run_power(params: Json, *, check_mode: bool, diff: bool, channel: RunChannel) -> Json:
    """The result of ``bmc_power`` for ``params`` (validated options)."""
    target = Target.from_params(params)
    deadline = Deadline(target.timeout_seconds)
    with open_bmc(target, deadline) as bmc:
        driver = bmc.driver("power")
        watch = _Watch(bmc.power, deadline, channel, 0.0)
        before = watch.known_state()
        actions = watch.power.power_actions()
        plan = plan_power(before, params["state"], params["shutdown"], actions)
        if check_mode or not plan.steps:
            after = _predicted(before, params["state"])
            commands = [actions[step.action] for step in plan.steps]
        else:
            watch.settle_seconds = driver.settle_seconds
            after = _apply_power(watch, plan, params, f"{target.address}/{driver.system or ''}")
            commands = watch.sent
        result: Json = {
            "changed": bool(plan.steps),
            "power_state": after,
            "power_state_before": before,
            "commands": commands,
            "shutdown": {
                "requested": params["shutdown"],
                "used": plan.shutdown_used,
                "reason": plan.shutdown_reason,
            },
            "driver": target.drivers["power"],
            "system": driver.system,
        }
    if diff:
        result["diff"] = {
            "before": {"power_state": before},
            "after": {"power_state": after, **({"commands": commands} if commands else {})},
        }
    return result


def plan_power(
    before: PowerState, wanted: str, shutdown: str, offered: Mapping[PowerAction, str]
) -> PowerPlan:
    """The commands that lead from ``before`` (on or off) to ``wanted``.

    Raises GRACEFUL_NOT_OFFERED, POWER_ACTION_NOT_OFFERED, POWER_STATE_WRONG (reset of a machine
    that is off).
    """
    plan = PowerPlan([])
    if wanted == "reset":
        if before != "on":
            raise Fault(
                "POWER_STATE_WRONG",
                wanted="a machine that is on, to reset it",
                found=f"it is {before}",
                cure="use state: cycled, which also starts a machine that is off",
            )
        plan.steps.append(
            PowerStep(_way_out(plan, shutdown, offered, "graceful_restart", "force_restart"), None)
        )
        return plan
    if before == "on" and wanted in ("off", "cycled"):
        plan.steps.append(
            PowerStep(_way_out(plan, shutdown, offered, "graceful_shutdown", "force_off"), "off")
        )
    if wanted == "cycled" or (before == "off" and wanted == "on"):
        plan.steps.append(PowerStep(_need("on", offered), "on"))
    return plan


def _way_out(
    plan: PowerPlan,
    shutdown: str,
    offered: Mapping[PowerAction, str],
    graceful: PowerAction,
    forced: PowerAction,
) -> PowerAction:
    """Graceful or forced, as the user chose; a swap is written into ``plan``."""
    if shutdown == "forced":
        plan.shutdown_used = "forced"
        return _need(forced, offered)
    if graceful in offered:
        plan.shutdown_used = "graceful"
        return graceful
    if shutdown == "graceful":
        raise Fault(
            "GRACEFUL_NOT_OFFERED",
            wanted=f"the action {graceful}",
            found=f"the BMC offers {_listed(offered)}",
            cure="choose shutdown: forced, or graceful_then_forced",
        )
    plan.shutdown_used = "forced"
    plan.shutdown_reason = f"the BMC does not offer {graceful}"
    return _need(forced, offered)


def _need(action: PowerAction, offered: Mapping[PowerAction, str]) -> PowerAction:
    if action not in offered:
        raise Fault(
            "POWER_ACTION_NOT_OFFERED",
            wanted=f"the action {action}",
            found=f"the BMC offers {_listed(offered)}",
            details={"offered": sorted(offered.values())},
        )
    return action


def _listed(offered: Mapping[PowerAction, str]) -> str:
    return ", ".join(sorted(offered.values())) or "nothing"


def _predicted(before: PowerState, wanted: str) -> PowerState:
    return {"on": "on", "off": "off", "cycled": "on"}.get(wanted, before)  # type: ignore[return-value]


def _apply_power(watch: _Watch, plan: PowerPlan, params: Json, key: str) -> PowerState:
    """Send the plan; the state observed at its end."""
    for number, step in enumerate(plan.steps):
        if number:
            # Some BMCs swallow, or refuse for a while, what comes right after a power change.
            watch.deadline.sleep(watch.settle_seconds)
        if step.until is None:
            _reset(watch, step, key, plan, params["shutdown"])
        elif step.action == "graceful_shutdown":
            _shut_down(watch, step, plan, params)
        else:
            _bring(watch, step)
    return watch.known_state()


def _shut_down(watch: _Watch, step: PowerStep, plan: PowerPlan, params: Json) -> None:
    """Ask the operating system, and force it only when the user chose that."""
    may_force = params["shutdown"] == "graceful_then_forced"
    patience = params["graceful_timeout_seconds"] if may_force else None
    try:
        if _bring(watch, step, patience):
            return
        plan.shutdown_reason = f"the system was still on after {patience} s"
    except Fault as fault:
        # IPMI cannot advertise a soft shutdown; refusing it is how a chassis says it has none.
        if fault.code != "BMC_REFUSED":
            raise
        if not may_force:
            raise Fault(
                "GRACEFUL_NOT_OFFERED",
                wanted=fault.wanted,
                found=fault.found,
                cure="choose shutdown: forced, or graceful_then_forced",
            ) from fault
        plan.shutdown_reason = f"the BMC refused to shut down gracefully ({fault.found})"
    plan.shutdown_used = "forced"
    watch.channel.progress(f"{plan.shutdown_reason}: forcing it off")
    _need("force_off", watch.power.power_actions())
    _bring(watch, PowerStep("force_off", "off"))


def _bring(watch: _Watch, step: PowerStep, patience_seconds: float | None = None) -> bool:
    """Make the machine reach ``step.until``, by one accepted command.

    It looks before it sends, every time, and sends only while the opposite is positively observed:
    after a refusal ("not now"), or long after a command whose answer was lost and that can be
    repeated. An accepted command is never sent again. Returns whether the state was reached; False
    only when ``patience_seconds`` are given and over. Raises POWER_NOT_REACHED,
    POWER_STATE_UNKNOWN or BMC_BUSY at the deadline.
    """
    name = watch.power.power_actions()[step.action]
    opposite: PowerState = "off" if step.until == "on" else "on"
    end = None if patience_seconds is None else time.monotonic() + patience_seconds
    may_send_at: float | None = 0.0
    refusal: NotYet | None = None
    trouble = ""
    for interval in intervals():
        state, unseen = watch.look()
        if state == step.until:
            watch.channel.progress(f"power is {state}")
            return True
        trouble = unseen or trouble
        if end is not None and time.monotonic() >= end:
            return False
        refusal = None
        if state == opposite and may_send_at is not None and time.monotonic() >= may_send_at:
            watch.channel.permit(f"bmc_power.{step.action}")
            try:
                watch.power.send_power_action(step.action)
                watch.sent.append(name)
                may_send_at = None
            except NotYet as error:
                refusal, trouble = error, str(error)
            except Unanswered as error:
                watch.sent.append(name)
                trouble = str(error)
                # A second press of the power button could cut a shutdown short.
                repeatable = step.action != "graceful_shutdown"
                may_send_at = time.monotonic() + _RESEND_SECONDS if repeatable else None
            except Fault as fault:
                if fault.code not in _PASSING:
                    raise
                trouble = fault.message
        watch.deadline.sleep(pause_after(refusal, interval))
        if watch.deadline.expired:
            break
    raise _not_reached(watch, step, state, refusal, trouble)


def _not_reached(
    watch: _Watch, step: PowerStep, state: PowerState, refusal: NotYet | None, trouble: str
) -> Fault:
    if refusal is not None:
        code = "BMC_BUSY"
    elif state == "unknown":
        code = "POWER_STATE_UNKNOWN"
    else:
        code = "POWER_NOT_REACHED"
    return Fault(
        code,
        wanted=f"power {step.until} within {watch.deadline.seconds:g} s",
        found=f"power {state}" + (f" ({trouble})" if trouble else ""),
        cure="shutdown: graceful_then_forced cuts the power of a system that does not obey"
        if step.action == "graceful_shutdown"
        else "",
        details={"commands": list(watch.sent)},
    )


def _reset(watch: _Watch, step: PowerStep, key: str, plan: PowerPlan, shutdown: str) -> None:
    """A bare reset: the intent is stored first, and it is sent again only after a refusal.

    Raises OUTCOME_UNKNOWN when the answer was lost and no mark of the BMC shows a reset.
    """
    operation = "bmc_power.reset"
    channel, name = watch.channel, watch.power.power_actions()[step.action]
    mark = patiently(watch.deadline, "to read the system", watch.power.last_reset)
    channel.permit(operation)
    channel.intend(operation, key)

    def send() -> None:
        watch.power.send_power_action(step.action)
        watch.sent.append(name)

    try:
        patiently(watch.deadline, f"to send {name}", send)
    except Unanswered as error:
        watch.sent.append(name)
        _wait_for_mark(watch, mark, name, error)
    except Fault as fault:
        channel.outcome(operation, key, f"not sent: {fault.code}")
        raise
    channel.outcome(operation, key, "accepted")


def _wait_for_mark(watch: _Watch, mark: str | None, name: str, error: Unanswered) -> None:
    """Return when the BMC shows that a reset took place; OUTCOME_UNKNOWN at the deadline."""
    for interval in intervals():
        # Without a mark from before there is nothing to compare, and waiting teaches nothing.
        if mark is None or watch.deadline.expired:
            break
        try:
            if watch.power.last_reset() not in (mark, None):
                return
        except NotYet:
            pass
        except Fault as fault:
            if fault.code not in _PASSING:
                raise
        watch.deadline.sleep(interval)
    raise Fault(
        "OUTCOME_UNKNOWN",
        wanted=f"an answer to {name}",
        found=str(error),
        details={"commands": list(watch.sent)},
    )


# -- bmc_boot_device ---------------------------------------------------------------------------


def boot_device_argument_spec() -> dict[str, Json]:
    """Options of ``bmc_boot_device``."""
    return {
        **bmc_argument_spec(),
        "device": {"type": "str", "required": True, "choices": list(BOOT_DEVICES)},
        "persistence": {"type": "str", "default": "once", "choices": ["once", "continuous"]},
        "mode": {"type": "str", "choices": ["uefi", "bios"]},
    }


def run_boot_device(params: Json, *, check_mode: bool, diff: bool, channel: RunChannel) -> Json:
    """The result of ``bmc_boot_device`` for ``params`` (validated options)."""
    target = Target.from_params(params)
    deadline = Deadline(target.timeout_seconds)
    with open_bmc(target, deadline) as bmc:
        boot, system = bmc.boot, bmc.driver("boot").system
        before = _read_override(boot, deadline)
        wanted = wanted_override(params)
        _refuse_not_offered(boot, wanted)
        after = before
        forms: list[str] = []
        if not satisfies(before, wanted):
            # Left out, the mode may be reset to what the firmware likes (ansible 52658).
            wanted = BootOverride(wanted.device, wanted.enabled, wanted.mode or before.mode)
            if check_mode:
                after = wanted
            else:
                after, forms = _apply_override(bmc, boot, wanted, channel)
    result: Json = {
        "changed": after is not before,
        "boot_override": after.to_dict(),
        "boot_override_before": before.to_dict(),
        "payloads": forms,
        "driver": target.drivers["boot"],
        "system": system,
    }
    if diff:
        result["diff"] = {"before": before.to_dict(), "after": after.to_dict()}
    return result


def wanted_override(params: Json) -> BootOverride:
    """The override that the options describe; device ``none`` takes it away."""
    if params["device"] == "none":
        return BootOverride("none", "disabled", None)
    return BootOverride(params["device"], params["persistence"], params["mode"])


def satisfies(found: BootOverride, wanted: BootOverride) -> bool:
    """Whether ``found`` is what was asked for; a mode of None in ``wanted`` is any."""
    if wanted.enabled == "disabled":
        return found.enabled == "disabled"
    return (found.device, found.enabled) == (wanted.device, wanted.enabled) and wanted.mode in (
        None,
        found.mode,
    )


def _refuse_not_offered(boot: BootDriver, wanted: BootOverride) -> None:
    devices = boot.boot_devices()
    if wanted.device not in devices:
        raise Fault(
            "BOOT_DEVICE_NOT_OFFERED",
            wanted=f"to boot from {wanted.device}",
            found=f"the BMC offers {', '.join(devices)}",
            details={"offered": list(devices)},
        )
    modes = boot.boot_modes()
    if wanted.mode is not None and modes and wanted.mode not in modes:
        raise Fault(
            "BOOT_MODE_NOT_OFFERED",
            wanted=f"to boot in mode {wanted.mode}",
            found=f"the BMC offers {', '.join(modes)}",
            details={"offered": list(modes)},
        )


def _read_override(boot: BootDriver, deadline: Deadline) -> BootOverride:
    return patiently(deadline, "to read the boot override", boot.boot_override)


def _apply_override(
    bmc: Bmc, boot: BootDriver, wanted: BootOverride, channel: RunChannel
) -> tuple[BootOverride, list[str]]:
    """Try the forms of the driver in turn until one is read back; returns it and the forms sent."""
    sent: list[str] = []
    found: BootOverride | None = None
    trouble = ""
    for form in boot.boot_forms():
        channel.permit("bmc_boot_device.set")
        try:
            patiently(
                bmc.deadline,
                "to set the boot override",
                lambda form=form: boot.set_boot_override(wanted, form),  # type: ignore[misc]
            )
        except Unanswered as error:
            # Setting it is idempotent and read back: the reading decides.
            trouble = str(error)
        except Fault as fault:
            if fault.code != "BMC_REFUSED":
                raise
            trouble = fault.message
            continue
        sent.append(form)
        found = _wait_for_override(bmc.deadline, boot, wanted)
        if satisfies(found, wanted):
            return found, sent
    raise Fault(
        "BOOT_OVERRIDE_NOT_KEPT",
        wanted=_described(wanted),
        found=(_described(found) if found else "every form of it refused")
        + (f" ({trouble})" if trouble else ""),
        details={"boot_override": found.to_dict() if found else None, "payloads": sent},
    )


def _wait_for_override(deadline: Deadline, boot: BootDriver, wanted: BootOverride) -> BootOverride:
    """What is read back, given the BMC some seconds to take it over."""
    end = time.monotonic() + _READ_BACK_SECONDS
    found = _read_override(boot, deadline)
    for interval in intervals():
        if satisfies(found, wanted) or time.monotonic() >= end:
            break
        deadline.sleep(interval)
        if deadline.expired:
            break
        found = _read_override(boot, deadline)
    return found


def _described(override: BootOverride) -> str:
    mode = f" in mode {override.mode}" if override.mode else ""
    return f"boot from {override.device}, {override.enabled}{mode}"


# -- bmc_info ----------------------------------------------------------------------------------


def info_argument_spec() -> dict[str, Json]:
    """Options of ``bmc_info``."""
    return bmc_argument_spec()


def run_info(params: Json, *, check_mode: bool, diff: bool, channel: RunChannel) -> Json:
    """The result of ``bmc_info``; reads only, so check mode changes nothing about it."""
    target = Target.from_params(params)
    deadline = Deadline(target.timeout_seconds)
    with open_bmc(target, deadline) as bmc:
        power_state = patiently(deadline, "to read the power state", bmc.power.power_state)
        override = _read_override(bmc.boot, deadline)
        inspection = bmc.inspect.inspect()
        return {
            "changed": False,
            "power_state": power_state,
            "boot_override": override.to_dict(),
            "capabilities": {
                "power": dict(bmc.power.power_actions()),
                "boot_devices": list(bmc.boot.boot_devices()),
                "boot_modes": list(bmc.boot.boot_modes()),
            },
            "secure_boot": inspection.inventory["firmware"]["secure_boot"],
            "inventory": inspection.inventory,
            "incomplete": inspection.incomplete,
            "drivers": dict(target.drivers),
            "system": bmc.driver("inspect").system,
        }
