package edgespec.app;

import edgespec.Model;
import java.io.File;
import java.io.IOException;

/** The model on the phone, where the native library is bundled. */
abstract class NativeModel implements Model {
    static boolean isBundled() {
        return false;
    }

    static NativeModel open(File file) throws IOException {
        throw new IOException("the native library is not bundled, so " + file + " cannot be read");
    }
}
