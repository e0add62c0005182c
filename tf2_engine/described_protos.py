"""Creates protocol buffer classes from declarations, to read files without TensorFlow's classes."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tf2_engine.types import Object


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Object]:
    """Creates message classes in a separate descriptor pool.

    Args:
        package: a package name that no other call uses.
        messages: the fields of each message in proto3 syntax, such as {"Point": "int64 x = 1; int64
            y = 2", "Line": "repeated Point points = 1"}.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, declarations in messages.items():
        message = file.message_type.add(name=name)
        for declaration in declarations.split(";"):
            *label, kind, field_name, _, number = declaration.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if label == ["repeated"] else field.LABEL_OPTIONAL
            if kind in messages:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            if label == ["optional"]:
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
