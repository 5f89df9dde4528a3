"""All scenarios of the crash harness by name."""

from __future__ import annotations

from crash_processes import (
    Cancel,
    DaemonLife,
    GuardianContained,
    GuardianLife,
    RecorderFailure,
    RecorderInspecting,
    RecorderLife,
    RecorderStopping,
    Submit,
    SubmitFirst,
    SubmitMany,
)
from crash_races import (
    RaceCancelStart,
    RaceHeirCancel,
    RaceLeave,
    RaceRecorderCancel,
    RaceRevokeStart,
    RaceSettleCancel,
    RaceStartCancel,
    RaceSubmits,
)
from crash_scenario import Scenario
from crash_ticks import (
    CancelInitializing,
    CancelLate,
    CancelRunning,
    GiveUpLate,
    Lost,
    LostCron,
    LostGone,
    Preempt,
    Settle,
    SettleWish,
    StartBeneficiary,
    StartCold,
    StartContained,
    StartForkServer,
    StartWarm,
    StopUnseen,
)

SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name(): scenario
    for scenario in (
        StartCold,
        StartWarm,
        StartForkServer,
        StartContained,
        Settle,
        SettleWish,
        Preempt,
        StartBeneficiary,
        CancelRunning,
        StopUnseen,
        CancelInitializing,
        CancelLate,
        GiveUpLate,
        Lost,
        LostGone,
        LostCron,
        Submit,
        SubmitFirst,
        SubmitMany,
        Cancel,
        RecorderLife,
        RecorderFailure,
        RecorderInspecting,
        RecorderStopping,
        GuardianLife,
        GuardianContained,
        DaemonLife,
        RaceStartCancel,
        RaceSettleCancel,
        RaceHeirCancel,
        RaceCancelStart,
        RaceRevokeStart,
        RaceSubmits,
        RaceRecorderCancel,
        RaceLeave,
    )
}
