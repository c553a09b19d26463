// A running collective, and one step of it.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

#include "communicator/run/scratch.h"
#include "communicator/run/statistics.h"
#include "isthmus/codec.h"
#include "isthmus/device.h"
#include "isthmus/phase.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

// What all Runs of one communicator share.
struct RunParts {
  Device& device;
  Statistics& statistics;
  std::atomic<Phase>& phase;
};

// Where a collective finds the caller's work on a GPU.
struct CallerStreams {
  Stream own;                   // the collective begins behind its present work
  std::optional<Stream> input;  // if set, it begins behind this one's, and only what it returns is behind `own`
};

// Follows one collective: the stream of its latest work, its scratch memory and its counters.
class Run {
 public:
  // scratch: the collective's memory from now on. timed: whether the device times the steps.
  Run(const RunParts& parts, ScratchInTurns& scratch, Collective collective, const CallerStreams& caller, bool timed);
  ~Run() { scratch_.is_held = false; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Collective collective() const { return collective_; }
  Device& device() const { return parts_.device; }
  // The stream of the latest work; before enter(), the caller's stream with the input.
  Stream tail() const { return tail_; }
  void set_phase(Phase phase) { parts_.phase = phase; }

  // Enqueues later work on `lane`, behind all work so far.
  void enter(Lane lane);
  // Enqueues later work on `lane`, behind `event` only.
  void enter_after(const EventPtr& event, Lane lane);
  // Lets later work on `lane` write the output, which may still be in use on the caller's own stream.
  void admit_output(Lane lane);
  // Passes when the work enqueued so far is done.
  EventPtr event() const;
  // The event of the collective so far. Called at the end, and where a collective stops until its second half.
  EventPtr end();

  // Uninitialised memory, valid until this object is gone and the collective after the next begins.
  Buffer take(int64_t num_elements, DataType dtype);
  Workspace workspace(int64_t scratch_bytes);

  // What this collective adds to the statistics when it is done.
  CollectiveStats counters;
  CodecCounts codec_counts;
  WeightStats weights;
  PeerWaits peer_waits;
  const UnitKey* unit = nullptr;      // whose gradients or weights it moves; null: nobody's
  UnitRecord* record = nullptr;       // of that unit
  const char* codec = "none";         // of the unit, as UnitStats names it
  const Options* settings = nullptr;  // of that codec; null: none
  std::shared_ptr<const SquaredError> error = nullptr;
  std::optional<Reason> reason;  // why gradients stay exact, or weights cross whole
  int64_t coded_elements = 0;    // elements of pieces that became packets for other nodes
  int64_t packet_bytes = 0;      // of those packets
  Buffer units_told;             // by the ranks of a tier, on a GPU: see Path::tell_unit()

 private:
  friend class Step;

  void arrive(Lane lane);

  const RunParts parts_;
  const Collective collective_;
  ScratchPart& scratch_;
  const CallerStreams caller_;
  Stream tail_;
  bool entered_ = false;  // a lane was entered
  const bool timed_;
};

// One step of a collective: it runs on a lane, names the phase, and adds its time to `seconds`.
class Step {
 public:
  // after: the step waits only for this event; nothing: for the latest work.
  Step(Run& run, Phase phase, Lane lane, double CollectiveStats::*seconds,
       const std::optional<EventPtr>& after = std::nullopt);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  Step(Run& run, Phase phase, double CollectiveStats::*seconds);  // then the destructor ends the range

  Run& run_;
  double CollectiveStats::*seconds_;
  Clock::time_point begin_;
  EventPtr begin_event_;
};

}  // namespace isthmus
