"""Records tensorboard.tfevents: events as TensorBoard's own protocol buffers and writer make them.

    python3 tests/oracles/tensorboard_events.py     needs tensorboard 2.21.0; the C++ tests need only the recorded file

tests/plugins/monitor/tensorboard_test.cpp makes the same events, and compares bytes.
"""

import os

from google.protobuf import struct_pb2
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

HERE = os.path.dirname(os.path.abspath(__file__))
Value = summary_pb2.Summary.Value


def plugin(name, content=b""):
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=name, content=content)
    return summary_pb2.SummaryMetadata(plugin_data=data)


def scalars():
    described = plugin("scalars")
    described.summary_description = "mean of the loss"
    values = [Value(tag="loss", simple_value=0.25, metadata=described)]
    values += [Value(tag=f"v{i}", simple_value=v) for i, v in enumerate([-1e-20, float("inf"), 3.14159, 0.0])]
    return summary_pb2.Summary(value=values)


def histogram():
    proto = summary_pb2.HistogramProto(
        min=-1.0, max=1.0, num=7.0, sum=1.5, sum_squares=3.25, bucket_limit=[-0.5, 0.0, 0.5, 1.0], bucket=[1, 2, 3, 1]
    )
    return summary_pb2.Summary(value=[Value(tag="weights/first", histo=proto)])


def text():
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    value = ("größer als\n" + 200 * "x").encode()
    strings = tensor_pb2.TensorProto(dtype=7, tensor_shape=shape, string_val=[value])
    one = Value(tag="notices/rewound/text_summary", tensor=strings, metadata=plugin("text"))
    return summary_pb2.Summary(value=[one])


def start():
    info = plugin_data_pb2.SessionStartInfo(group_name="quick", start_time_secs=1000.5)
    info.hparams["a.number"].CopyFrom(struct_pb2.Value(number_value=0.005))
    info.hparams["b.flag"].CopyFrom(struct_pb2.Value(bool_value=True))
    info.hparams["c.text"].CopyFrom(struct_pb2.Value(string_value="cosine"))
    data = plugin_data_pb2.HParamsPluginData(session_start_info=info).SerializeToString(deterministic=True)
    return summary_pb2.Summary(value=[Value(tag="_hparams_/session_start_info", metadata=plugin("hparams", data))])


def end(status):
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=2000.25)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info).SerializeToString()
    return summary_pb2.Summary(value=[Value(tag="_hparams_/session_end_info", metadata=plugin("hparams", data))])


def main():
    restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    events = [
        event_pb2.Event(wall_time=1.5, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=2.5, step=301, session_log=restart),
        event_pb2.Event(wall_time=3.5, step=1, summary=scalars()),
        event_pb2.Event(wall_time=4.5, step=1 << 40, summary=histogram()),
        event_pb2.Event(wall_time=5.5, step=5, summary=text()),
        event_pb2.Event(wall_time=6.5, step=6, summary=start()),
        event_pb2.Event(wall_time=7.5, step=7, summary=end(api_pb2.STATUS_SUCCESS)),
        event_pb2.Event(wall_time=8.5, step=8, summary=end(api_pb2.STATUS_FAILURE)),
    ]
    with open(os.path.join(HERE, "tensorboard.tfevents"), "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()


if __name__ == "__main__":
    main()
