// Functions that torch can call and the fake GPU does not have. Headers are left out, as they declare those alone that
// their versions have.
#include "fake_runtime.h"

namespace {
constexpr int kNcclInvalidUsage = 5;
constexpr int kCuptiNotInitialized = 15;
}  // namespace

// --- NCCL: the real ones would take the fake's handles for their own. Torch 2.11 has NCCL 2.28, torch 2.15 has 2.30.

#define FAKE_REFUSED(name) \
  FAKE_API int name() { return kNcclInvalidUsage; }
FAKE_REFUSED(ncclCommGetUniqueId)
FAKE_REFUSED(ncclCommGrow)
FAKE_REFUSED(ncclCommInitAll)
FAKE_REFUSED(ncclCommMemStats)
FAKE_REFUSED(ncclCommResume)
FAKE_REFUSED(ncclCommRevoke)
FAKE_REFUSED(ncclCommShrink)
FAKE_REFUSED(ncclCommSuspend)
FAKE_REFUSED(ncclCommWindowDeregister)
FAKE_REFUSED(ncclCommWindowRegister)
FAKE_REFUSED(ncclDevCommCreate)
FAKE_REFUSED(ncclDevCommDestroy)
FAKE_REFUSED(ncclGetLsaMultimemDevicePointer)
FAKE_REFUSED(ncclGetPeerDevicePointer)
FAKE_REFUSED(ncclGroupSimulateEnd)
FAKE_REFUSED(ncclPutSignal)
FAKE_REFUSED(ncclSignal)
FAKE_REFUSED(ncclWaitSignal)
FAKE_REFUSED(ncclWinGetUserPtr)

// --- CUPTI: where torch.profiler asks for CUDA's activities it looks for the driver, in CUDA 13.2 without an end.

FAKE_API int cuptiGetResultString(int, const char** text) {
  *text = "the fake GPU has no CUPTI";
  return 0;
}
#define FAKE_NO_CUPTI(name) \
  FAKE_API int name() { return kCuptiNotInitialized; }
FAKE_NO_CUPTI(cuptiActivityDisable)
FAKE_NO_CUPTI(cuptiActivityEnable)
FAKE_NO_CUPTI(cuptiActivityEnableCudaEventDeviceTimestamps)
FAKE_NO_CUPTI(cuptiActivityEnableDriverApi)
FAKE_NO_CUPTI(cuptiActivityEnableRuntimeApi)
FAKE_NO_CUPTI(cuptiActivityFlushAll)
FAKE_NO_CUPTI(cuptiActivityGetNextRecord)
FAKE_NO_CUPTI(cuptiActivityGetNumDroppedRecords)
FAKE_NO_CUPTI(cuptiActivityPopExternalCorrelationId)
FAKE_NO_CUPTI(cuptiActivityPushExternalCorrelationId)
FAKE_NO_CUPTI(cuptiActivityRegisterCallbacks)
FAKE_NO_CUPTI(cuptiActivityRegisterTimestampCallback)
FAKE_NO_CUPTI(cuptiActivitySetAttribute)
FAKE_NO_CUPTI(cuptiEnableCallback)
FAKE_NO_CUPTI(cuptiEnableDomain)
FAKE_NO_CUPTI(cuptiFinalize)
FAKE_NO_CUPTI(cuptiGetCallbackName)
FAKE_NO_CUPTI(cuptiGetVersion)
FAKE_NO_CUPTI(cuptiSubscribe)
FAKE_NO_CUPTI(cuptiUnsubscribe)
