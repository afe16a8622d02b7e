package android.net;

import java.io.File;

public class Uri {
    public final File fakeFile;

    public Uri(File file) { fakeFile = file; }
}
