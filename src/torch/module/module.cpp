// isthmus._C: the backend's interface to Python. It is built with the pybind11 that torch bundles, the only one that
// knows torch's types.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "communicator/path/segments.h"
#include "communicator/plan/policy.h"
#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/block/instruction_set.h"
#include "kernels/tagc/flat.h"
#include "kernels/weights/weight_packet.h"
#include "torch/base/tensors.h"
#include "torch/module/bindings.h"

namespace isthmus::torch_backend {
namespace {

using namespace py::literals;

using OptionsPtr = c10::intrusive_ptr<BackendOptions>;

// An option got a value of a wrong type; in Python this is also a TypeError.
class OptionTypeError : public OptionError {
 public:
  using OptionError::OptionError;
};

const OptionField& find_field(const std::string& name) {
  for (const OptionField& field : option_fields()) {
    if (name == field.name) {
      return field;
    }
  }
  ISTHMUS_CHECK(OptionError, name != "cell_type",
                "option cell_type has left: cells of tagc hold float32. Leave it out");
  py::list known;
  for (const OptionField& field : option_fields()) {
    known.append(field.name);
  }
  known.append("timeout");
  const py::list near = py::module_::import("difflib").attr("get_close_matches")(name, known, 1);
  throw OptionError("there is no option " + name + ": " +
                    (near.empty() ? "there are " + py::str(", ").attr("join")(known).cast<std::string>()
                                  : "did you mean " + near[0].cast<std::string>() + "?"));
}

// Returns a Python value as the text that an option's setter parses.
std::string option_text(const OptionField& field, py::handle value) {
  if (py::isinstance<py::bool_>(value)) {
    return value.cast<bool>() ? "true" : "false";
  }
  if (!py::isinstance<py::str>(value) && !py::isinstance<py::int_>(value) && !py::isinstance<py::float_>(value)) {
    throw OptionTypeError(detail::concatenate("option ", field.name, "=", py::repr(value).cast<std::string>(),
                                              ": expected ", field.range, ", not a ",
                                              py::type::of(value).attr("__name__").cast<std::string>()));
  }
  return py::str(value);
}

void set_field(BackendOptions& options, const OptionField& field, const std::string& text) {
  field.set(options.values, text);
  options.given.insert(field.name);
}

void bind_field(py::class_<BackendOptions, c10d::Backend::Options, OptionsPtr>& type, const OptionField& field) {
  const auto get = [&field](const BackendOptions& options) {
    return field.choices.empty()
               ? std::visit([&options](auto member) { return py::cast(options.values.*member); }, field.member)
               : py::cast(field.get(options.values));
  };
  const auto set = [&field](BackendOptions& options, py::handle value) {
    set_field(options, field, option_text(field, value));
  };
  const std::string users = field.users_text();
  type.def_property(
      field.name, get, set,
      detail::concatenate(users.empty() ? "" : users + ": ", field.help, " ", field.range, ". ", field.environment)
          .c_str());
}

OptionsPtr make_options(const py::kwargs& keywords) {
  auto options = c10::make_intrusive<BackendOptions>(isthmus::Options::from_environment());
  for (const OptionField& field : option_fields()) {
    if (field.is_in_environment()) {
      options->given.insert(field.name);
    }
  }
  for (const auto& [key, value] : keywords) {
    const auto name = key.cast<std::string>();
    if (name == "timeout") {
      try {
        options->timeout = value.cast<std::chrono::milliseconds>();
      } catch (const py::cast_error&) {
        throw OptionTypeError(
            detail::concatenate("timeout=", py::repr(value).cast<std::string>(), ": expected datetime.timedelta"));
      }
    } else {
      const OptionField& field = find_field(name);
      set_field(*options, field, option_text(field, value));
    }
  }
  return options;
}

OptionsPtr copy_options(const BackendOptions& options) { return c10::make_intrusive<BackendOptions>(options); }

py::tuple state_of(const BackendOptions& options) {
  py::dict state;
  for (const OptionField& field : option_fields()) {
    state[field.name] = field.get(options.values);
  }
  state["timeout"] = options.timeout;
  return py::make_tuple(state, options.given);
}

OptionsPtr from_state(const py::tuple& state) {
  OptionsPtr options = make_options(py::kwargs(state[0].cast<py::dict>()));
  options->given = state[1].cast<std::set<std::string>>();
  return options;
}

// Returns each option that was set but that the codec ignores: name, value, codecs that use it.
std::vector<std::tuple<std::string, std::string, std::string>> without_effect(const BackendOptions& options) {
  std::vector<std::tuple<std::string, std::string, std::string>> rows;
  for (const OptionField& field : option_fields()) {
    if (options.given.contains(field.name) && !options.values.uses(field)) {
      rows.emplace_back(field.name, field.get(options.values), field.users_text());
    }
  }
  return rows;
}

// Returns what help(isthmus.Options) shows: pybind11 cannot list the keywords of **kwargs.
std::string options_help() {
  const isthmus::Options defaults;
  std::string text =
      "Options of a process group: keywords over variables ISTHMUS_* over defaults. An unknown name or a value out of "
      "range is an OptionError, which is a ValueError; a value of another type is a TypeError as well.\n\n";
  for (const OptionField& field : option_fields()) {
    const std::string value = field.get(defaults);
    const std::string users = field.users_text();
    text += detail::concatenate(field.name, ": ", field.range, "; by default ", value.empty() ? "empty" : value, ". ",
                                users.empty() ? "" : "For " + users + ". ", field.help, " ", field.environment, "\n");
  }
  return text + "timeout: datetime.timedelta, of the group's operations.\n";
}

void bind_options(py::module_& module) {
  py::class_<BackendOptions, c10d::Backend::Options, OptionsPtr> type(module, "Options", options_help().c_str());
  type.def(py::init(&make_options), "Keywords as the class lists them.")
      .def("__repr__",
           [](const BackendOptions& options) {
             return "isthmus.Options(" + options.values.to_string() +
                    " timeout=" + std::to_string(options.timeout.count() / 1000.0) + "s)";
           })
      .def("__str__", [](const BackendOptions& options) { return options.values.to_string(); })
      .def("__eq__",
           [](const BackendOptions& options, py::handle other) {
             return py::isinstance<BackendOptions>(other) &&
                    other.cast<const BackendOptions&>().values.to_string() == options.values.to_string();
           })
      .def_property_readonly("is_flat", [](const BackendOptions& own) { return own.values.is_flat(); })
      .def_property_readonly("sends_differences",
                             [](const BackendOptions& own) { return own.values.sends_differences(); })
      .def_property_readonly("uses_mpi", [](const BackendOptions& own) { return own.values.uses_mpi(); })
      .def("_without_effect", &without_effect,
           "Of each option that was set and that the codec does not look at: name, value, codecs that do.")
      .def("__copy__", &copy_options)
      .def(
          "__deepcopy__", [](const BackendOptions& options, const py::dict&) { return copy_options(options); },
          py::arg("memo"))
      .def(py::pickle(&state_of, &from_state));
  for (const OptionField& field : option_fields()) {
    bind_field(type, field);
  }
}

py::dict to_dict(const Traffic& traffic) {
  return py::dict("sent_bytes"_a = traffic.sent_bytes, "inter_node_sent_bytes"_a = traffic.inter_node_sent_bytes);
}

py::dict to_dict(const CollectiveStats& stats) {
  return py::dict("calls"_a = stats.calls, "packed_calls"_a = stats.packed_calls, "intra"_a = to_dict(stats.intra),
                  "inter"_a = to_dict(stats.inter), "flat"_a = to_dict(stats.flat), "intra_s"_a = stats.intra_s,
                  "exchange_s"_a = stats.exchange_s, "encode_s"_a = stats.encode_s, "decode_s"_a = stats.decode_s);
}

py::dict to_dict(const CodecCounts& counts) {
  return py::dict("encoded_elements"_a = counts.encoded_elements, "kept_elements"_a = counts.kept_elements,
                  "held_back_elements"_a = counts.held_back_elements,
                  "estimated_elements"_a = counts.estimated_elements, "non_finite_blocks"_a = counts.non_finite_blocks,
                  "spikes"_a = counts.spikes);
}

std::optional<double> ratio(double part, double whole) {
  return whole > 0 ? std::optional(part / whole) : std::nullopt;
}

std::map<std::string, int64_t> by_text(const std::map<Reason, int64_t>& counted) {
  std::map<std::string, int64_t> counts;
  for (const auto& [reason, count] : counted) {
    counts.emplace(to_string(reason), count);
  }
  return counts;
}

py::dict to_dict(const UnitStats& unit) {
  const double packet_bits = 8.0 * static_cast<double>(unit.packet_bytes);
  return py::dict("name"_a = unit.name, "collective"_a = to_string(unit.collective),
                  "num_elements"_a = unit.num_elements, "dtype"_a = to_string(unit.dtype), "codec"_a = unit.codec,
                  "settings"_a = unit.settings, "reason"_a = unit.reason ? to_string(*unit.reason) : "",
                  "calls"_a = unit.calls, "coded_elements"_a = unit.coded_elements,
                  "unchanged_calls"_a = unit.unchanged_calls, "packet_bytes"_a = unit.packet_bytes,
                  "bits_per_element"_a = ratio(packet_bits, static_cast<double>(unit.coded_elements)),
                  "relative_squared_error"_a = ratio(unit.dropped_squares, unit.given_squares));
}

py::dict to_dict(const WeightStats& weights) {
  return py::dict("gathers"_a = weights.gathers, "unchanged"_a = weights.unchanged, "healed"_a = weights.healed,
                  "differing"_a = weights.differing, "whole"_a = by_text(weights.whole),
                  "replica_bytes"_a = weights.replica_bytes);
}

py::dict to_dict(const isthmus::Stats& path) {
  py::dict collectives;
  for (int i = 0; i < kNumCollectives; ++i) {
    collectives[to_string(static_cast<Collective>(i))] = to_dict(path.collectives[i]);
  }
  py::list units;
  for (const auto& [hash, unit] : path.units) {
    units.append(to_dict(unit));
  }
  const PeerWaits& waits = path.peer_waits;
  const py::dict peer_waits_s("intra"_a = waits.intra, "inter"_a = waits.inter, "flat"_a = waits.flat);
  return py::dict("collectives"_a = collectives, "codec"_a = to_dict(path.codec), "weights"_a = to_dict(path.weights),
                  "peer_waits_s"_a = peer_waits_s, "compressed_calls"_a = path.compressed_calls,
                  "exact_calls"_a = by_text(path.exact_calls), "skipped_steps"_a = path.skipped_steps,
                  "num_units"_a = path.num_units, "residual_bytes"_a = path.residual_bytes,
                  "dropped_residuals"_a = path.dropped_residuals, "scratch_bytes"_a = path.scratch_bytes,
                  "units"_a = units);
}

py::dict to_dict(const std::map<std::string, WorldCalls>& world) {
  py::dict calls;
  for (const auto& [call, counted] : world) {
    calls[call.c_str()] = py::dict("calls"_a = counted.calls, "sent_bytes"_a = counted.crossing.sent_bytes,
                                   "received_bytes"_a = counted.crossing.received_bytes);
  }
  return calls;
}

py::dict to_dict(const BackendStats& stats) {
  py::dict devices;
  for (const auto& [device, path] : stats.devices) {
    devices[device.c_str()] = to_dict(path);
  }
  return py::dict("node_map"_a = stats.node_map, "node_map_source"_a = stats.node_map_source,
                  "options"_a = stats.options, "calls"_a = stats.calls, "world"_a = to_dict(stats.world),
                  **to_dict(stats.path), "ran_s"_a = stats.ran_s, "waited_s"_a = stats.waited_s, "devices"_a = devices,
                  "one_tier"_a = stats.one_tier);
}

c10::intrusive_ptr<BackendIsthmus> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                const OptionsPtr& options, std::vector<int> node_of_rank,
                                                std::string node_map_source, BackendPtr world, BackendPtr tiers,
                                                std::shared_ptr<MessageTransport> inter, BackendPtr cuda_world,
                                                c10::intrusive_ptr<c10d::Store> cuda_store, std::string no_cuda,
                                                bool covers_job, bool beyond_job, bool owns_worlds) {
  return c10::make_intrusive<BackendIsthmus>(
      BackendParts{std::move(store), rank, size, copy_options(*options), std::move(node_of_rank),
                   std::move(node_map_source), CpuParts{std::move(world), std::move(tiers), std::move(inter)},
                   CudaParts{std::move(cuda_world), std::move(cuda_store)}, std::move(no_cuda), covers_job, beyond_job,
                   owns_worlds});
}

void bind_backend(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  // isthmus._mpi makes them.
  // NOLINTNEXTLINE(bugprone-unused-raii): its constructor makes the type known
  py::class_<MessageTransport, std::shared_ptr<MessageTransport>>(module, "Transport");
  BackendClass type(module, "Backend");
  type.def(py::init(&make_backend), unlocked, py::kw_only(), "store"_a, "rank"_a, "size"_a, "options"_a,
           "node_of_rank"_a, "node_map_source"_a = "", "world"_a, "tiers"_a, "inter"_a = py::none(),
           "cuda_world"_a = py::none(), "cuda_store"_a = py::none(), "no_cuda"_a = "", "covers_job"_a = true,
           "beyond_job"_a = false, "owns_worlds"_a = true)
      .def_property_readonly("options",
                             [](BackendIsthmus& backend) {
                               return c10::static_intrusive_pointer_cast<BackendOptions>(backend.getBackendOptions());
                             })
      .def("stats", [](BackendIsthmus& backend) { return to_dict(backend.stats()); })
      .def("reset_stats", &BackendIsthmus::reset_stats, unlocked)
      .def_property_readonly("failure", &BackendIsthmus::failure)
      // With NCCL, ranks outside a new group take part in making it; here they do nothing.
      .def(
          "perform_nocolor_split", [](BackendIsthmus&, py::handle) {}, "device"_a)
      .def_property_readonly("node_of_rank", &BackendIsthmus::node_of_rank)
      .def_property_readonly("global_ranks", &BackendIsthmus::global_ranks)
      .def_property_readonly("beyond_job", &BackendIsthmus::beyond_job);
  bind_units(module, type);
}

void bind_reasons(py::module_& module) {
  py::enum_<Reason> type(module, "Reason", "Why something was not compressed.");
#define ISTHMUS_VALUE(name, python, text) type.value(#python, Reason::name);
  ISTHMUS_REASONS(ISTHMUS_VALUE)
#undef ISTHMUS_VALUE
  type.def_property_readonly("text", [](Reason reason) { return to_string(reason); });
}

void bind_errors(py::module_& module) {
  const auto error = py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  const auto option_bases = py::make_tuple(error, py::handle(PyExc_ValueError));
  const auto option_error = py::register_exception<OptionError>(module, "OptionError", option_bases);
  py::register_exception<OptionTypeError>(module, "OptionTypeError",
                                          py::make_tuple(option_error, py::handle(PyExc_TypeError)));
  py::register_exception<PacketError>(module, "PacketError", error);
  py::register_exception<TransportError>(module, "TransportError", error);
}

void bind_functions(py::module_& module) {
  module.def(
      "option_fields",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string>> rows;
        for (const OptionField& field : option_fields()) {
          rows.emplace_back(field.name, field.environment, field.range, field.help, field.users_text());
        }
        return rows;
      },
      "Of each option: name, environment variable, range, help, codecs that look at it (empty: whatever it is).");
  module.def("codecs", &codec_names);
  module.def(
      "packet_bytes",
      [](const OptionsPtr& options, int64_t num_elements, at::ScalarType type) {
        const isthmus::Options& values = options->values;
        const std::optional<DataType> dtype = floating_dtype(type);
        ISTHMUS_CHECK(Error, dtype && num_elements >= 0, "packets of ", num_elements, " elements of ",
                      c10::toString(type), ": expected at least 0 of a floating-point type");
        const std::unique_ptr<Codec> codec = make_codec(values.codec, values, *dtype, 1);
        int64_t bytes = 0;
        for (const Segment& segment : segments_of(num_elements, values.segments)) {
          bytes += codec->packet_bytes(segment.num_elements);
        }
        return bytes;
      },
      py::arg("options"), py::arg("num_elements"), py::arg("dtype"),
      "Bytes of the packets of one piece of so many elements, one packet for each segment.");
  module.def(
      "flat_bytes",
      [](const OptionsPtr& options, int64_t num_elements) {
        const std::shared_ptr<Device> device = make_host_device();
        const std::unique_ptr<TagcFlat> codec = make_tagc_flat(options->values, *device);
        const auto cell_bytes = static_cast<int64_t>(sizeof(float));
        return std::pair(codec->index_bytes(num_elements), codec->sketch_elements(num_elements) * cell_bytes);
      },
      py::arg("options"), py::arg("num_elements"),
      "Bytes of the index and of the sketch of one owner's chunk with tiers=flat and codec tagc.");
  module.def(
      "parse_nodes",
      [](const std::string& text, int world_size) { return NodeMap::parse(text, world_size).node_of_rank(); },
      "The node of each rank.");
  module.def("unit_is_compressed", &unit_is_compressed, py::arg("units"), py::arg("name"),
             "Whether globs as in the option `units` include a unit of that name.");
  module.def("split_globs", &split_globs, py::arg("units"), "The globs in a value of the option `units`.");
  module.def("glob_of", &glob_of, py::arg("name"), "The glob that matches this name alone.");
  module.def("describe_nodes", [](const std::vector<int>& node_of_rank) { return NodeMap(node_of_rank).to_string(); });
  module.def("shutdown_all", &shutdown_all, py::call_guard<py::gil_scoped_release>(),
             "Shuts down every backend of this process.");
  module.def(
      "set_split_function", [](SplitFunction function) { split_function = std::move(function); },
      "How Backend.split constructs a backend: function(store, rank, size, options, beyond_job).");
  module.def(
      "set_shutdown_listener",
      [](py::object function) {
        shutdown_listener = [function = function.release()](BackendIsthmus& backend) {
          const BackendStats stats = backend.stats();
          const py::gil_scoped_acquire gil;
          try {
            function(backend.getGroupDesc(), backend.getGroupUid(), to_dict(stats));
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("isthmus: the last statistics of a group");
          }
        };
      },
      "Who gets the statistics of a group that torch shuts down: function(description, unique name, statistics).");
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The native part of isthmus.";
  py::module_::import("torch._C._distributed_c10d");  // registers the base types
  module.attr("PACKET_VERSION") = PacketHeader::kVersion;
  module.attr("INSTRUCTION_SET") = kernels::to_string(kernels::instruction_set());  // of the CPU's loops
  module.attr("WEIGHT_HEADER_BYTES") = kernels::kWeightHeaderBytes;
  bind_errors(module);
  bind_reasons(module);
  bind_options(module);
  bind_backend(module);
  bind_functions(module);
  bind_weights(module);
}

}  // namespace isthmus::torch_backend
