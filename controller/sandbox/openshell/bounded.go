package openshell

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bounds of a message of the gateway. An empty record is two bytes of a message and a hundred in memory.
const (
	maxMessage = 16 << 20 // bytes
	maxFields  = 200_000  // in all its records
)

var errFields = fmt.Errorf("a message has more than %d fields", maxFields)

// bounded is the encoding of gRPC for messages of at most maxFields fields.
type bounded struct{ encoding.CodecV2 }

func newBounded() bounded { return bounded{encoding.GetCodecV2(proto.Name)} }

func (b bounded) Unmarshal(data mem.BufferSlice, v any) error {
	if m, is := v.(protobuf.Message); is {
		left := maxFields
		if err := countFields(data.Materialize(), m.ProtoReflect().Descriptor(), &left); err != nil {
			return err
		}
	}
	return b.CodecV2.Unmarshal(data, v)
}

// countFields takes the fields of an encoded message, and of the records in it, from left.
func countFields(data []byte, of protoreflect.MessageDescriptor, left *int) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, data[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if *left--; *left < 0 {
			return errFields
		}
		if f := of.Fields().ByNumber(number); f != nil && f.Message() != nil && kind == protowire.BytesType {
			record, _ := protowire.ConsumeBytes(data[n:])
			if err := countFields(record, f.Message(), left); err != nil {
				return err
			}
		}
		data = data[n+size:]
	}
	return nil
}
